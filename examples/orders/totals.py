def main(orders, currency):
    totals = {}
    for order in orders:
        totals[order["customer"]] = totals.get(order["customer"], 0) + order["amount"]
    return {"totals": totals, "currency": currency}
