"""What bridges share: models traced from programs, data frames of rows, and draws beside their data."""
