def main(totals):
    lines = [f"{customer}: {amount}" for customer, amount in sorted(totals.items())]
    return {"lines": lines, "sum": sum(totals.values())}
