package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A keptServer is a MariaDB server that tests have one after the other: to start one takes a
// processor longer than to clean one up.
type keptServer struct {
	*lab.MySQL
	databases, users []string // when it was started, as is state
	state            string
}

// keptServers are those that no test has.
var keptServers struct {
	mu   sync.Mutex
	idle []*keptServer // guarded by mu
}

// ownServer has t have a MariaDB server for itself, of which it may change all but settings
// and accounts that were there.
func ownServer(t *testing.T) *lab.MySQL {
	t.Helper()
	server(t) // skips without one
	s := takeServer()
	if s == nil {
		s = new(keptServer)
		var err error
		s.MySQL, err = lab.StartMariaDB(ctxFor(t), serverConfig())
		proxytest.Need(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !t.Failed() && s.clean(ctx) == nil {
			keptServers.mu.Lock()
			defer keptServers.mu.Unlock()
			keptServers.idle = append(keptServers.idle, s)
		} else if err := s.Discard(ctx); err != nil {
			t.Error(err)
		}
	})
	if s.state == "" {
		var err error
		if s.databases, s.users, s.state, err = s.now(ctxFor(t)); err != nil {
			t.Fatal(err)
		}
	}
	return s.MySQL
}

func takeServer() *keptServer {
	keptServers.mu.Lock()
	defer keptServers.mu.Unlock()
	n := len(keptServers.idle)
	if n == 0 {
		return nil
	}
	s := keptServers.idle[n-1]
	keptServers.idle = keptServers.idle[:n-1]
	return s
}

// clean makes the server what it was when it was started; an error if it cannot.
func (s *keptServer) clean(ctx context.Context) error {
	databases, users, _, err := s.now(ctx)
	if err != nil {
		return err
	}
	var texts []string
	for _, db := range databases {
		if !slices.Contains(s.databases, db) {
			texts = append(texts, "DROP DATABASE `"+db+"`")
		}
	}
	for _, user := range users {
		if !slices.Contains(s.users, user) {
			texts = append(texts, "DROP USER "+user)
		}
	}
	if err := s.Exec(ctx, texts...); err != nil {
		return err
	}
	if _, _, state, err := s.now(ctx); err != nil || state != s.state {
		return errors.Join(err, errors.New("a test has left something in the server"))
	}
	return nil
}

// now is what the server is like.
func (s *keptServer) now(ctx context.Context) (databases, users []string, state string, err error) {
	conn, err := mywire.Connect(ctx, mywire.ConnectConfig{Address: s.Addr(), User: s.User(), TLSMode: mywire.TLSDisabled})
	if err != nil {
		return nil, nil, "", err
	}
	defer func() { _ = conn.Close() }()
	var b strings.Builder
	for i, query := range []string{
		"SELECT schema_name FROM information_schema.schemata",
		"SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) FROM mysql.global_priv",
		"SELECT CONCAT_WS(' ', user, host, priv) FROM mysql.global_priv",
		"SELECT CONCAT_WS(' ', db, user, host) FROM mysql.db",
		"SELECT CONCAT_WS(' ', variable_name, variable_value) FROM information_schema.global_variables WHERE variable_name NOT LIKE 'gtid%'",
	} {
		rows, err := conn.Query(ctx, query)
		if err != nil {
			return nil, nil, "", fmt.Errorf("%s: %w", query, err)
		}
		values := make([]string, len(rows))
		for i, row := range rows {
			values[i] = row[0].String
		}
		slices.Sort(values)
		switch i {
		case 0:
			databases = values
		case 1:
			users = values
		}
		b.WriteString(strings.Join(values, "\n") + "\n\n")
	}
	return databases, users, b.String(), nil
}

// tests run, and then end the servers that they have kept.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	code := t.m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for s := takeServer(); s != nil; s = takeServer() {
		if err := s.Discard(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stop server:", err)
			code = max(code, 1)
		}
	}
	return code
}
