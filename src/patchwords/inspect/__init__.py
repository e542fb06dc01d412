"""What a ViT has learned and where it looks: arrays in, arrays out; drawing is in report/."""
