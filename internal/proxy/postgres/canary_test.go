package postgres_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// gateway stands before a server and, if it is silent, keeps to itself what that reports
// of settings once a session has begun.
func gateway(t *testing.T, server string, silent bool) (addr string) {
	t.Helper()
	return proxytest.Gateway(t, server, func(client, be net.Conn) {
		go func() {
			_, _ = io.Copy(be, client)
			_ = be.Close()
		}()
		go func() {
			_ = passOn(client, be, silent)
			_ = client.Close()
		}()
	})
}

// passOn copies messages of the server.
func passOn(client io.Writer, be io.Reader, silent bool) error {
	began := false
	for {
		head := make([]byte, pgwire.HeaderLen)
		if _, err := io.ReadFull(be, head); err != nil {
			return err
		}
		msg := append(head, make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
		if _, err := io.ReadFull(be, msg[pgwire.HeaderLen:]); err != nil {
			return err
		}
		if silent && began && head[0] == pgwire.ServerParameterStatus {
			continue
		}
		began = began || head[0] == pgwire.ServerReady
		if _, err := client.Write(msg); err != nil {
			return err
		}
	}
}

// TestServerThatDoesNotReport: behind a gateway that reports no changes of settings
// each session keeps its connection, nothing is shared or grouped, and nothing of one
// session reaches another. Behind one that does, sessions share as ever.
func TestServerThatDoesNotReport(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		db := database(t, "CREATE TABLE r (id int)", "CREATE FUNCTION sets() RETURNS void LANGUAGE sql AS 'SET datestyle = German'")
		addr := gateway(t, server(t).Addr(), silent)
		w := start(t, db, func(c *postgres.Config) { c.Postgres.Address, c.PoolSize = addr, 4 })
		ctx := ctxFor(t)
		exec := func(c *pgx.Conn, sql string) {
			t.Helper()
			if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		show := func(c *pgx.Conn, sql string) (value string) {
			t.Helper()
			if err := c.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&value); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			return value
		}
		one, two := connect(t, w.dsn("postgres")), connect(t, w.dsn("postgres"))
		for range 10 {
			exec(one, "SELECT 1")
			exec(two, "SELECT 1")
			exec(one, "/* batch */ INSERT INTO r VALUES (1)")
		}
		exec(one, "SET intervalstyle = iso_8601")
		exec(one, "SELECT sets()")
		exec(one, "SET application_name = 'of one'")
		for range 5 {
			if got := show(two, "SELECT '1999-01-08'::date::text || current_setting('intervalstyle')"); got != "1999-01-08postgres" {
				t.Errorf("silent %v: another session has %q", silent, got)
			}
			if got := show(one, "SELECT '1999-01-08'::date::text || current_setting('application_name')"); got != "08.01.1999of one" {
				t.Errorf("silent %v: the session has %q", silent, got)
			}
		}
		p := w.pool()
		if untracked := p.Pins["untracked"] == 2; untracked != silent {
			t.Errorf("silent %v: pins %v", silent, p.Pins)
		}
		if silent && (p.Reads > 0 || p.Grouped > 0) {
			t.Errorf("%d statements were shared and %d grouped", p.Reads, p.Grouped)
		}
		if !silent { // reads of a shape are shared once it is known to be fast
			eventually(t, "reads are shared behind a gateway that reports", func() bool {
				exec(two, "SELECT 1")
				return w.pool().Reads > 0
			})
		}
		// A session's state is closed with it.
		if err := one.Close(ctx); err != nil {
			t.Fatal(err)
		}
		three := connect(t, w.dsn("postgres"))
		if got := show(three, "SELECT '1999-01-08'::date::text || current_setting('intervalstyle')"); got != "1999-01-08postgres" {
			t.Errorf("silent %v: a new session has %q", silent, got)
		}
	}
}
