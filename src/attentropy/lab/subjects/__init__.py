"""What experiments look at: small models, populations of scores, real heads."""
