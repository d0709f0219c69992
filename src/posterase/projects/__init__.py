"""Projects and jobs: what an erasure from the command line or the service needs to know, and who carries it out."""
