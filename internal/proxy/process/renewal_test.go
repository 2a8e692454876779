package process_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// A certifier is a server to which clients come with certificates.
type certifier interface {
	DSN(db string) string
	User() string
	ClientCert(role string) (lab.KeyPair, error)
}

// TestReloadRenewsOwnLogins: a reload takes over the certificate and the password by which
// weir logs in at the server, where they were replaced.
func TestReloadRenewsOwnLogins(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM, Password: "first", TLS: lab.TLSMutual})
		testOwnLogins(t, "postgres", pg, pg.DSN("postgres"), func(address, password string) error {
			conn, err := dial(t, address, pg.User(), password, "postgres")
			if err == nil {
				_, err = conn.Exec(t.Context(), "SELECT 1")
			}
			return err
		}, func() error {
			conn, err := pgx.Connect(t.Context(), pg.DSN("postgres"))
			if err != nil {
				return err
			}
			defer conn.Close(t.Context())
			_, err = conn.Exec(t.Context(), "ALTER ROLE "+pg.User()+" PASSWORD 'second'")
			return err
		}, "--auth", "scram-sha-256")
	})
	t.Run("mysql", func(t *testing.T) {
		my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true, BufferPool: "16M", Password: "first", TLS: lab.TLSMutual})
		testOwnLogins(t, "mysql", my, my.DSN(""), func(address, password string) error {
			_, err := dialMySQL(t, address, my.User(), password, "", "SELECT 1")
			return err
		}, func() error {
			return my.Exec(t.Context(), "ALTER USER root@'127.0.0.1' IDENTIFIED BY 'second'")
		}, "--mysql-auth", "mysql_native_password")
	})
}

func testOwnLogins(t *testing.T, key string, server certifier, dsn string, ask func(address, password string) error, change func() error, options ...string) {
	dir := t.TempDir()
	certificate := map[string]string{"cert": filepath.Join(dir, "own.crt"), "key": filepath.Join(dir, "own.key")}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for name := range q { // sslcert, ssl-cert and so on
		for what, path := range certificate {
			if strings.HasPrefix(name, "ssl") && strings.HasSuffix(name, what) && name != "sslrootcert" {
				q.Set(name, path)
			}
		}
	}
	u.RawQuery = q.Encode()
	config := filepath.Join(dir, "weir.yaml")
	write := func(password string) {
		t.Helper()
		u.User = url.UserPassword(server.User(), password)
		clitest.Write(t, config, fmt.Sprintf("%s: %s\n", key, u))
	}
	install := func(role string) {
		t.Helper()
		pair, err := server.ClientCert(role)
		if err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{pair.Cert: certificate["cert"], pair.Key: certificate["key"]} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("first")
	install("somebody")
	log, stop := startProxy(t, append(options, "-c", config, "--connect-patience", "200ms")...)
	address := log.Await("weir proxy listens")["address"].(string)
	reload := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		log.Await("configuration reloaded")
	}
	served := func(password string) {
		t.Helper()
		testkit.Await(t, func() bool { err = ask(address, password); return err == nil }, func() string { return fmt.Sprint("served: ", err) })
	}
	if err := ask(address, "first"); err == nil {
		t.Error("weir was let in by somebody else's certificate")
	}
	install(server.User())
	reload()
	served("first")
	if err := change(); err != nil {
		t.Fatal(err)
	}
	write("second")
	reload()
	served("second")
	if err := ask(address, "first"); err == nil {
		t.Error("the former password is still good")
	}
	stop()
	if strings.Contains(log.Seen.String(), "need a restart") {
		t.Errorf("a reload wants a restart:\n%s", log.Seen.String())
	}
}
