"""How an ask becomes a trial, once: whose turn it is, what is known already, what is not tried again."""
