package killtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// A heir is a server of the lab that may take another one's place.
type heir interface {
	mortal
	Port() int
	Stop(context.Context) error
}

// An engine of replication: a primary acknowledges no commit that its standby does not
// have, PostgreSQL by synchronous replication, MariaDB by the semi-synchronous one.
type replication struct {
	// first starts a primary, which acknowledges nothing yet.
	first func(t *testing.T, port int) heir
	// follow starts a standby and returns when it confirms commits.
	follow func(ctx context.Context, t *testing.T, primary heir, port int) (heir, error)
	// promote makes a standby take writes. The primary has died, or hangs.
	promote func(ctx context.Context, standby heir) error
	flags   func(hosts, listen string) []string
}

var replications = map[string]replication{
	"postgres": {
		first: func(t *testing.T, port int) heir {
			p, err := lab.StartPostgres(t.Context(), replicated(port))
			return started(t, p, err)
		},
		follow: followPostgres,
		promote: func(ctx context.Context, standby heir) error {
			return onPostgres(ctx, standby, func(conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "SELECT pg_promote()")
				return err
			})
		},
		flags: func(hosts, listen string) []string {
			return []string{"--postgres", "postgres://postgres@" + hosts + "/postgres?sslmode=disable", "--listen-postgres", listen}
		},
	},
	"mariadb": {
		first: func(t *testing.T, port int) heir {
			m, err := lab.StartMariaDB(t.Context(), semiSynchronous(port))
			p := started(t, m, err)
			if err := m.Exec(t.Context(), "CREATE DATABASE "+database); err != nil {
				t.Fatal(err)
			}
			return p
		},
		follow: followMariaDB, promote: promoteMariaDB,
		flags: func(hosts, listen string) []string {
			return []string{"--mysql", "mysql://root@" + hosts + "/" + database + "?ssl-mode=DISABLED", "--listen-mysql", listen}
		},
	},
}

// started has a server end with the test.
func started(t *testing.T, h heir, err error) heir {
	t.Helper()
	if err != nil {
		if lab.NotInstalled(err) && os.Getenv("CI") != "true" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(context.Background()) }) // most have been stopped by then
	return h
}

// replicated is the configuration of each PostgreSQL server: none acknowledges a commit
// without its standby. pg_basebackup, which makes the standby, has another name.
func replicated(port int) lab.PostgresConfig {
	return lab.PostgresConfig{Port: port, Settings: map[string]string{"synchronous_standby_names": "walreceiver"}}
}

func onPostgres(ctx context.Context, server mortal, do func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, "postgres://postgres@"+server.Addr()+"/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return do(conn)
}

func followPostgres(ctx context.Context, t *testing.T, primary heir, port int) (heir, error) {
	s, err := lab.StartStandby(ctx, primary.(*lab.Postgres), replicated(port))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) }) // most have been stopped by then
	return s, onPostgres(ctx, primary, func(conn *pgx.Conn) error {
		return until(ctx, "the standby confirms commits", func() (is bool, err error) {
			err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").Scan(&is)
			return is, err
		})
	})
}

// until asks again and again, for as long as ctx lets it.
func until(ctx context.Context, what string, is func() (bool, error)) error {
	for {
		yes, err := is()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if yes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// semiSynchronous is the configuration of a MariaDB server, which waits for its replica
// before a transaction is seen or acknowledged, however long that takes.
func semiSynchronous(port int) lab.MySQLConfig {
	return lab.MySQLConfig{Port: port, Light: true, Settings: map[string]string{
		"server_id":                       strconv.Itoa(2 + rand.IntN(1<<30)),
		"rpl_semi_sync_slave_enabled":     "1",
		"rpl_semi_sync_master_wait_point": "AFTER_SYNC",
		"rpl_semi_sync_master_timeout":    "3600000",
	}}
}

// status returns one column of an answer of one row.
func status(ctx context.Context, server heir, query, column string) (string, error) {
	db, err := sql.Open("mysql", "root@tcp("+server.Addr()+")/")
	if err != nil {
		return "", err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return "", errors.Join(err, rows.Err(), errors.New(query+": no answer"))
	}
	values, into := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	if err := rows.Scan(into...); err != nil {
		return "", err
	}
	for i, name := range names {
		if strings.EqualFold(name, column) {
			return values[i].String, rows.Err()
		}
	}
	return "", fmt.Errorf("%s: no column %s", query, column)
}

// followMariaDB has a new server read the whole binary log of the primary, which begins
// with the first one's.
func followMariaDB(ctx context.Context, t *testing.T, primary heir, port int) (heir, error) {
	m, err := lab.StartMariaDB(ctx, semiSynchronous(port))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = m.Stop(context.Background()) }) // most have been stopped by then
	host, sqlPort, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		return nil, err
	}
	if err := m.Exec(ctx, "SET GLOBAL read_only = 1",
		"CHANGE MASTER TO MASTER_HOST = '"+host+"', MASTER_PORT = "+sqlPort+", MASTER_USER = 'root', MASTER_USE_GTID = slave_pos", "START SLAVE"); err != nil {
		return nil, err
	}
	if err := until(ctx, "the replica confirms commits", func() (bool, error) {
		n, err := status(ctx, primary, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'", "Value")
		return n == "1", err
	}); err != nil {
		return nil, err
	}
	return m, primary.(*lab.MySQL).Exec(ctx, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
}

// promoteMariaDB makes a replica the primary, in the order that the manual has: it applies
// what it has confirmed, and waits for a replica of its own before it acknowledges.
func promoteMariaDB(ctx context.Context, standby heir) error {
	m := standby.(*lab.MySQL)
	if err := m.Exec(ctx, "STOP SLAVE IO_THREAD"); err != nil {
		return err
	}
	if err := until(ctx, "the replica has applied everything", func() (bool, error) {
		if e, err := status(ctx, m, "SHOW SLAVE STATUS", "Last_SQL_Error"); err != nil || e != "" {
			return false, errors.Join(err, errors.New(e))
		}
		says, err := status(ctx, m, "SHOW SLAVE STATUS", "Slave_SQL_Running_State")
		return strings.HasPrefix(says, "Slave has read all relay log"), err
	}); err != nil {
		return err
	}
	return m.Exec(ctx, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL rpl_semi_sync_master_enabled = 1", "SET GLOBAL read_only = 0")
}

// promotionsOfLine is how often the primary of one storm changes: each new replica of
// MariaDB reads everything that was ever written.
const promotionsOfLine = 10

// TestFailovers kills primaries, or stops them for a while, promotes their standbys, and
// kills weir, while clients write. WEIR_FAILOVERS is how many kills each engine gets;
// WEIR_KILLS_TABLE names a file for the table of results.
func TestFailovers(t *testing.T) {
	testkit.Long(t, "kills and promotes servers")
	kills, seed := 3, uint64(time.Now().UnixNano())
	for name, into := range map[string]any{"WEIR_FAILOVERS": &kills, "WEIR_KILLS_SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			if _, err := fmt.Sscan(text, into); err != nil {
				t.Fatalf("%s=%s: %v", name, text, err)
			}
		}
	}
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			if os.Getenv("WEIR_FAILOVERS") == "" {
				t.Parallel()
			}
			r := newResult("failovers", e.name)
			for done := 0; done < kills && !t.Failed(); {
				t.Run("line", func(t *testing.T) {
					s := newSuccession(t, e, seed+uint64(done))
					goal := min(kills-done, promotionsOfLine)
					for s.kills() < goal && !t.Failed() {
						s.period(goal - s.kills())
					}
					done += s.kills()
					s.judge(r)
					publish(t, r)
				})
			}
		})
	}
}

// A succession is a primary's standby, which will take its place.
type succession struct {
	replication
	next  heir
	spare int // the port of the next standby; weir knows of it
}

func newSuccession(t *testing.T, e *engine, seed uint64) *storm {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	s := &storm{t: t, engine: e, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), faults: map[string]int{}, gaps: map[string][]time.Duration{}, bag: heirs}
	addrs := labtest.Addrs(t, 5)
	var ports []int
	for _, a := range addrs[:3] {
		_, text, err := net.SplitHostPort(a)
		s.must(err)
		port, err := strconv.Atoi(text)
		s.must(err)
		ports = append(ports, port)
	}
	s.line = &succession{replication: replications[e.name], spare: ports[2]}
	first := s.line.replication.first(t, ports[0])
	next, err := s.line.replication.follow(ctx, t, first, ports[1])
	s.must(err)
	s.server, s.line.next = first, next
	s.weir = &weir{
		path: program.Path(t), admin: addrs[4], lanes: map[string]int{},
		args: append([]string{"proxy", "--trust-loopback", "--pool-size", "8", "--failover-timeout", "10m", "--queue-timeout", "10m", "--login-timeout", "10m", "--admin", addrs[4]},
			s.line.flags(strings.Join(addrs[:3], ","), addrs[3])...),
	}
	s.front = labtest.Relay(t, addrs[3])
	s.must(s.weir.launch())
	t.Cleanup(s.weir.kill)
	return s
}

// promote has the standby take writes: it is the server from then on, and gets a standby
// of its own, before which it acknowledges nothing.
func (s *storm) promote() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	heir := s.line.next
	s.must(s.line.replication.promote(ctx, heir))
	next, err := s.line.replication.follow(ctx, s.t, heir, s.line.spare)
	s.must(err)
	s.server, s.line.next = heir, next
}

// bury removes a former primary, which is dead.
func (s *storm) bury(old mortal) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	s.must(old.(heir).Stop(ctx))
	s.line.spare = old.(heir).Port()
}
