"""The paper's figures: what they are made of, and drawing them."""
