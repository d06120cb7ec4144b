"""A page of one run or several, to send to a colleague: wdjax report."""
