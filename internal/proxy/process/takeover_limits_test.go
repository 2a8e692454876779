package process_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A guest is a session that is to be handed over, or not.
type guest struct {
	ping func() error
	end  func() error
	mute bool // its driver does not read what the server says before it hangs up
}

// admits pings all sessions and returns those that have been admitted. The others were
// told why, as far as their driver says so.
func admits(t *testing.T, all []guest, want int, why string) (in []guest) {
	t.Helper()
	for _, g := range all {
		switch err := g.ping(); {
		case err == nil:
			in = append(in, g)
		case !g.mute && !strings.Contains(err.Error(), why):
			t.Errorf("a session that was not admitted: %v, want %q", err, why)
		}
	}
	if len(in) != want {
		t.Errorf("%d sessions go on, want %d", len(in), want)
	}
	return in
}

// takeovers hands five sessions over, to processes that admit fewer and fewer of them,
// while their database takes no logins: which sessions that are there do not mind.
func takeovers(t *testing.T, s *succession, database string, console func(text string) error, login func() (guest, error)) {
	var all []guest
	for range 5 {
		g, err := login()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	if err := console("DISABLE " + database); err != nil {
		t.Fatal(err)
	}
	s.over(s.next())
	admits(t, all, 5, "nothing")
	s.args = append(s.args, "--max-clients", "3")
	s.over(s.next())
	all = admits(t, all, 3, "too many clients already (--max-clients is 3)")
	s.args = append(s.args, "--max-user-client-connections", "2")
	s.over(s.next())
	all = admits(t, all, 2, "max-user-client-connections")
	s.args = append(s.args, "--max-db-client-connections", "1")
	s.over(s.next())
	all = admits(t, all, 1, "max-db-client-connections")
	if err := all[0].end(); err != nil {
		t.Fatal(err)
	}
	if _, err := login(); err == nil || !strings.Contains(err.Error(), "takes no logins (DISABLE)") {
		t.Errorf("a login to a database that was disabled three processes ago: %v", err)
	}
	if err := console("ENABLE " + database); err != nil {
		t.Fatal(err)
	}
	g, err := login()
	if err == nil {
		err = g.ping()
	}
	if err != nil {
		t.Errorf("a login to a database that was enabled again: %v", err)
	}
}

// TestTakeoverMindsLimits: what the new limits do not admit ends with their name, and
// what was disabled stays so for logins alone.
func TestTakeoverMindsLimits(t *testing.T) {
	pg := sharedPostgres.Get(t)
	s := newPostgresSuccession(t, pg)
	connect := func(database string) (*pgx.Conn, error) {
		return pgx.Connect(t.Context(), fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", s.address, database))
	}
	takeovers(t, s, "postgres", func(text string) error {
		conn, err := connect("weir")
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
		return errors.Join(err, conn.Close(t.Context()))
	}, func() (guest, error) {
		conn, err := connect("postgres")
		if err != nil {
			return guest{}, err
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return guest{
			ping: func() error {
				_, err := conn.Exec(t.Context(), "SELECT 1")
				var e *pgconn.PgError
				if err != nil && (!errors.As(err, &e) || e.Code != "57P01") {
					t.Errorf("%v has another code than 57P01", err)
				}
				return err
			},
			end: func() error { return conn.Close(t.Context()) },
		}, nil
	})
}

// TestTakeoverOfMySQLMindsLimits does the same there.
func TestTakeoverOfMySQLMindsLimits(t *testing.T) {
	my := sharedMariaDB.Get(t)
	if err := my.Exec(t.Context(), "DROP DATABASE IF EXISTS heirs", "CREATE DATABASE heirs"); err != nil {
		t.Fatal(err)
	}
	s := newSuccession(t, "WEIR_MYSQL="+my.DSN("heirs"), "--listen-mysql")
	connect := func(database string) (*sql.Conn, error) {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName, cfg.Logger = "root", "tcp", s.address, database, &mysql.NopLogger{}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(connector)
		t.Cleanup(func() { _ = db.Close() })
		return db.Conn(t.Context())
	}
	takeovers(t, s, "heirs", func(text string) error {
		conn, err := connect("weir")
		if err != nil {
			return err
		}
		_, err = conn.ExecContext(t.Context(), text)
		// Closed at the server's end as well: a connection of the driver's pool would stay.
		return errors.Join(err, conn.Raw(func(c any) error { return c.(interface{ Close() error }).Close() }))
	}, func() (guest, error) {
		conn, err := connect("heirs")
		if err != nil {
			return guest{}, err
		}
		return guest{
			mute: true,
			ping: func() error { _, err := conn.ExecContext(t.Context(), "DO 1"); return err },
			end:  func() error { return conn.Raw(func(c any) error { return c.(interface{ Close() error }).Close() }) },
		}, nil
	})
}
