"""The paper's tables: what they train, what came out, and the reports."""
