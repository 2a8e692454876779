"""Writes through weir with Python's drivers until standard input ends.

client.py ENGINE HOST PORT USER DATABASE FIRST: ids are FIRST and up. Each line of output
is a JSON object; see drivers_test.go.
"""

import asyncio
import importlib
import json
import sys
import threading
import time

engine, host, port, user, database, first = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6])
printing = threading.Lock()
ids = iter(range(first, 1 << 62))
stop = threading.Event()

if engine == "postgres":
    SETTINGS = ["SET statement_timeout = '54321ms'", "SET TIME ZONE '+03:00'"]
    ASK = "SELECT current_setting('statement_timeout') || ' ' || current_setting('TimeZone')"
else:
    SETTINGS = ["SET SESSION group_concat_max_len = 54321", "SET time_zone = '+03:00'"]
    ASK = "SELECT CONCAT(@@group_concat_max_len, ' ', @@time_zone)"


def say(**what):
    with printing:
        print(json.dumps(what), flush=True)


class Driver:
    """A DB-API driver: how it connects, and what is known of its errors."""

    def __init__(self, name, module, arguments, cursor={}):
        self.name, self.module, self.arguments, self.cursor = name, importlib.import_module(module), arguments, cursor

    def connect(self):
        conn = self.module.connect(**self.arguments)
        if self.module.__name__ == "psycopg2":
            conn.autocommit = True
        return Connection(self, conn)

    def code(self, e):
        """The server's code, or "lost" where the driver has none."""
        code = getattr(e, "sqlstate", None) if engine == "postgres" else getattr(e, "errno", None)
        if self.module.__name__ == "psycopg2":
            code = getattr(e, "pgcode", None)
        if self.module.__name__ == "pymysql" and e.args:
            code = e.args[0]
        if code in (None, 0, -1, 2006, 2013, 2055):  # the client's own
            return "lost"
        return str(code)


class Connection:
    def __init__(self, driver, conn):
        self.driver, self.conn = driver, conn

    def run(self, text, *args):
        cursor = self.conn.cursor(**(self.driver.cursor if args else {}))
        try:
            cursor.execute(text, args) if args else cursor.execute(text)
            rows = cursor.fetchall() if cursor.description else []
        finally:
            try:
                cursor.close()
            except Exception:
                pass  # of a lost connection; that was told
        return rows

    def alive(self):
        name = self.driver.module.__name__
        if name.startswith("psycopg"):
            return not self.conn.closed
        if name == "pymysql":
            return self.conn.open
        return self.conn.is_connected()

    def close(self):
        try:
            self.conn.close()
        except Exception:
            pass  # it may be lost


class Asyncpg:
    """asyncpg, each connection in a loop of its own."""

    name = "asyncpg"

    def connect(self):
        import asyncpg

        self.types = asyncpg
        c = Connection(self, None)
        c.loop = asyncio.new_event_loop()
        wait = c.loop.run_until_complete
        c.conn = wait(asyncpg.connect(host=host, port=port, user=user, database=database, ssl=False))

        def run(text, *args):
            for n in range(len(args)):
                text = text.replace("%s", "$%d" % (n + 1), 1)
            return wait(c.conn.fetch(text, *args))

        c.run, c.alive = run, lambda: not c.conn.is_closed()

        def close():
            c.conn.terminate()
            wait(asyncio.sleep(0))
            c.loop.close()

        c.close = close
        return c

    def code(self, e):
        return getattr(e, "sqlstate", None) or "lost"


if engine == "postgres":
    drivers = [
        Driver("psycopg 3", "psycopg", dict(host=host, port=port, user=user, dbname=database, sslmode="disable", autocommit=True)),
        Driver("psycopg2", "psycopg2", dict(host=host, port=port, user=user, dbname=database, sslmode="disable")),
        Asyncpg(),
    ]
else:
    connector = dict(host=host, port=port, user=user, database=database, autocommit=True, ssl_disabled=True)
    drivers = [
        Driver("PyMySQL", "pymysql", dict(host=host, port=port, user=user, database=database, autocommit=True)),
        Driver("mysql-connector-python", "mysql.connector", connector),
        Driver("mysql-connector-python, prepared", "mysql.connector", connector, dict(prepared=True)),
    ]


def work(driver, kind):
    conn = None
    while not stop.is_set():
        time.sleep(0.005)
        if conn is None:
            try:
                conn = driver.connect()
                for text in SETTINGS:
                    conn.run(text)
                settings = conn.run(ASK)[0][0]
            except Exception as e:
                say(driver=driver.name, kind=kind, did="connect", code=driver.code(e), text=repr(e))
                if conn is not None:
                    conn.close()
                conn = None
                time.sleep(0.05)
                continue
        with printing:
            n = next(ids)
        committing = False
        try:
            if kind == "transactions":
                conn.run("BEGIN")
                conn.run("INSERT INTO written (id, part) VALUES (%s, %s)", n, 1)
                conn.run("INSERT INTO written (id, part) VALUES (%s, %s)", n, 2)
                committing = True
                conn.run("COMMIT")
            else:
                hint = "/* batch */ " if kind == "hinted" else ""
                conn.run(hint + "INSERT INTO written (id, part) VALUES (%s, %s)", n, 1)
        except Exception as e:
            did = "not committed" if kind == "transactions" and not committing else "write"
            say(driver=driver.name, kind=kind, did=did, id=n, code=driver.code(e), text=repr(e))
        else:
            say(driver=driver.name, kind=kind, did="ok", id=n)
            try:
                found = conn.run("SELECT COUNT(*) FROM written WHERE id = %s", n)[0][0]
                now = conn.run(ASK)[0][0]
                if found != (2 if kind == "transactions" else 1):
                    say(driver=driver.name, kind=kind, did="complaint", text="write %d is there %d times" % (n, found))
                if now != settings:
                    say(driver=driver.name, kind=kind, did="complaint", text="settings %s, not %s" % (now, settings))
                continue
            except Exception as e:
                say(driver=driver.name, kind=kind, did="read", code=driver.code(e), text=repr(e))
        try:
            if conn.alive() and kind == "transactions":
                conn.run("ROLLBACK")
            if conn.alive():
                continue
        except Exception:
            pass  # what failed was told
        conn.close()
        conn = None
    if conn is not None:
        conn.close()


threads = [threading.Thread(target=work, args=(d, kind)) for d in drivers for kind in ("plain", "hinted", "transactions")]
for t in threads:
    t.start()
sys.stdin.read()
stop.set()
for t in threads:
    t.join()
