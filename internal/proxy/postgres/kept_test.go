package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	gosync "sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/proxytest"
)

// A serverKind is what tests ask of a server that they have for themselves.
type serverKind struct {
	auth    lab.Auth // "": it trusts everybody, and nobody has a password
	tls     lab.TLSMode
	standby string // synchronous_standby_names
}

// A keptServer is one that tests have one after the other: to start one takes a processor
// ten times as long as to clean one up.
type keptServer struct {
	*lab.Postgres
	kind  serverKind
	log   *serverLog
	state string // when it was started
}

// keptServers are those that no test has.
var keptServers struct {
	mu gosync.Mutex
	of map[serverKind][]*keptServer // guarded by mu
}

// ownServer has t have a server of a kind for itself, and its log. If there are passwords, that
// of the superuser is "super secret", and that of bob, the other role, "secret".
func ownServer(t *testing.T, kind serverKind) (*lab.Postgres, *serverLog) {
	t.Helper()
	server(t) // skips without one
	s := takeServer(kind)
	if s == nil {
		s = &keptServer{kind: kind, log: new(serverLog)}
		cfg := serverConfig()
		cfg.Auth, cfg.TLS, cfg.Log = kind.auth, kind.tls, s.log
		if kind.auth != "" {
			cfg.Password = "super secret"
		}
		cfg.Settings["log_connections"] = "on"
		cfg.Settings["synchronous_standby_names"] = kind.standby
		var err error
		s.Postgres, err = lab.StartPostgres(ctxFor(t), cfg)
		proxytest.Need(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !t.Failed() && s.clean(ctx) == nil {
			keptServers.mu.Lock()
			defer keptServers.mu.Unlock()
			keptServers.of[kind] = append(keptServers.of[kind], s)
		} else if err := s.Discard(ctx); err != nil {
			t.Error(err)
		}
	})
	if s.state == "" {
		if err := s.furnish(ctxFor(t)); err != nil {
			t.Fatal(err)
		}
	}
	return s.Postgres, s.log
}

// trusting starts a server that accepts every user without a password.
func trusting(t *testing.T) *lab.Postgres {
	t.Helper()
	own, _ := ownServer(t, serverKind{})
	return own
}

func takeServer(kind serverKind) *keptServer {
	keptServers.mu.Lock()
	defer keptServers.mu.Unlock()
	if keptServers.of == nil {
		keptServers.of = make(map[serverKind][]*keptServer)
	}
	idle := keptServers.of[kind]
	if len(idle) == 0 {
		return nil
	}
	keptServers.of[kind] = idle[:len(idle)-1]
	return idle[len(idle)-1]
}

// discardServers ends those that are kept.
func discardServers(ctx context.Context) (err error) {
	keptServers.mu.Lock()
	defer keptServers.mu.Unlock()
	for _, idle := range keptServers.of {
		for _, s := range idle {
			err = errors.Join(err, s.Discard(ctx))
		}
	}
	keptServers.of = nil
	return err
}

// furnish makes bob, and notes what the server is like.
func (s *keptServer) furnish(ctx context.Context) error {
	conn, err := s.admin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := s.makeBob(ctx, conn); err != nil {
		return err
	}
	s.state, err = s.stateNow(ctx, conn)
	return err
}

// admin is a session in a database that no test uses.
func (s *keptServer) admin(ctx context.Context) (*pgconn.PgConn, error) {
	return pgconn.Connect(ctx, s.DSN("template1")+"&options=-csynchronous_commit%3Dlocal")
}

func (s *keptServer) makeBob(ctx context.Context, conn *pgconn.PgConn) error {
	sql := "SET password_encryption = 'scram-sha-256'; CREATE ROLE bob LOGIN PASSWORD 'secret'"
	switch s.kind.auth {
	case "":
		sql = "CREATE ROLE bob LOGIN"
	case lab.MD5:
		sql = "SET password_encryption = 'md5'; CREATE ROLE bob LOGIN PASSWORD 'secret'"
	case lab.SCRAM, lab.Password, lab.Trust:
	}
	return conn.Exec(ctx, sql).Close()
}

// clean makes the server what it was when it was started; an error if it cannot.
func (s *keptServer) clean(ctx context.Context) error {
	conn, err := s.admin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'template1' AND pid <> pg_backend_pid();
 SELECT 'DROP DATABASE ' || quote_ident(datname) || ' WITH (FORCE)' FROM pg_database WHERE datname NOT LIKE 'template_'
 UNION ALL SELECT 'DROP ROLE ' || quote_ident(rolname) FROM pg_roles WHERE rolname <> 'postgres' AND rolname NOT LIKE 'pg\_%'
 ORDER BY 1`).ReadAll() // databases first
	if err != nil {
		return err
	}
	for _, row := range results[1].Rows {
		if err := conn.Exec(ctx, string(row[0])).Close(); err != nil {
			return err
		}
	}
	if err := conn.Exec(ctx, s.CreateDatabase("postgres")).Close(); err != nil {
		return err
	}
	if err := s.makeBob(ctx, conn); err != nil {
		return err
	}
	if state, err := s.stateNow(ctx, conn); err != nil || state != s.state {
		return errors.Join(err, errors.New("a test has left something in the server"))
	}
	// What it has said so far it has said to others.
	return s.log.forget(ctx, func(mark string) error {
		return conn.Exec(ctx, "DO $$ BEGIN RAISE LOG '"+mark+"'; END $$").Close()
	})
}

// stateNow is what is the server's own, and what clean does not look after.
func (s *keptServer) stateNow(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := conn.Exec(ctx, `SELECT a::text FROM pg_authid a WHERE rolname = 'postgres';
 SELECT d::text FROM pg_db_role_setting d; SELECT datname, datconnlimit, datacl::text FROM pg_database WHERE datname LIKE 'template_' ORDER BY 1;
 SELECT nspname FROM pg_namespace WHERE oid > 16383; SELECT proname FROM pg_proc WHERE oid > 16383; SELECT relname FROM pg_class WHERE oid > 16383;
 SELECT spcname FROM pg_tablespace WHERE oid > 16383; SELECT slot_name FROM pg_replication_slots; SELECT gid FROM pg_prepared_xacts`).ReadAll()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintf(&b, "%s\n", r.Rows)
	}
	for _, name := range []string{"pg_hba.conf", "pg_ident.conf", "postgresql.conf", "postgresql.auto.conf"} {
		content, err := os.ReadFile(filepath.Join(s.DataDir(), name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s\n%s\n", name, content)
	}
	return b.String(), nil
}
