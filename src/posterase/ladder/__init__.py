"""The ladder: methods in order of cost, the policy that judges them, and the draws that are returned."""
