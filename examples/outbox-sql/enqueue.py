"""An order and its message in one transaction, with Python's standard library.

    weir outbox migrate --db shop.db
    python3 examples/outbox-sql/enqueue.py shop.db
    weir outbox relay --db shop.db --sink stdout:

The message is one INSERT; topic, msg_key and payload are all that it needs. With
psycopg or PyMySQL it is the same statement, with %s where SQLite has ?.
"""

import json
import sqlite3
import sys


def place_order(db, number, customer, fail=False):
    with db:  # commits, or rolls back when something is raised
        db.execute("INSERT INTO orders (number, customer) VALUES (?, ?)", (number, customer))
        db.execute(
            "INSERT INTO weir_outbox (topic, msg_key, payload, headers) VALUES (?, ?, ?, ?)",
            (
                "orders",
                customer,
                json.dumps({"number": number}).encode(),
                json.dumps({"type": "order.placed", "content-type": "application/json"}),
            ),
        )
        if fail:
            raise RuntimeError("the card was declined")


def main():
    db = sqlite3.connect(sys.argv[1], timeout=10)
    db.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer TEXT NOT NULL)")
    (last,) = db.execute("SELECT COALESCE(MAX(number), 0) FROM orders").fetchone()
    place_order(db, last + 1, "ada")
    try:
        place_order(db, last + 2, "bob", fail=True)
    except RuntimeError as error:
        print(f"order {last + 2} was rolled back with its message:", error)
    place_order(db, last + 3, "ada")
    db.close()


if __name__ == "__main__":
    main()
