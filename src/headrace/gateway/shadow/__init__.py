"""How good routed answers were: scored in the shadow by a grader, or by those who asked."""
