package mysql_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// whoMay is what accounts of a MariaDB server may do, without those of the server's own.
const whoMay = `SELECT concat(user, '@', host, ' ', is_role, ' ', default_role, ' ', authentication_string) FROM mysql.user WHERE user IN ('PUBLIC', 'clerk', 'desk') ORDER BY 1;
SHOW GRANTS FOR clerk; SHOW GRANTS FOR desk; SHOW GRANTS FOR PUBLIC;
SELECT concat(server_name, ' ', host, ' ', port, ' ', username, ' ', password, ' ', wrapper) FROM mysql.servers`

// TestGlobalsComeBack restores a cluster into another server, after an interruption: accounts
// with their roles and grants, grants to PUBLIC, and linked servers.
func TestGlobalsComeBack(t *testing.T) {
	r := newRig(t, other(t, server(t, lab.FlavorMariaDB)), `CREATE TABLE orders (id int PRIMARY KEY, x int); INSERT INTO orders VALUES (1, 1);
CREATE ROLE desk; CREATE USER clerk IDENTIFIED BY 'its secret'; GRANT SELECT, INSERT ON orders TO desk; GRANT desk TO clerk; SET DEFAULT ROLE desk FOR clerk;
GRANT SELECT ON orders TO PUBLIC; GRANT UPDATE (x) ON orders TO clerk; CREATE TABLE `+"`two;\nlines` (id int); GRANT DELETE ON `two;\nlines` TO clerk;"+`
CREATE SERVER shop FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1', USER 'it''s', PASSWORD 'p;\nq\\r;', PORT 3307, DATABASE 'far');`)
	want := r.client("", whoMay)
	r.backup(backup.Options{DSN: r.m.DSN(""), Cluster: true}, archive.Options{})

	target := other(t, r.m)
	to := &rig{t: t, m: target, db: r.db, repo: r.repo}
	to.client("", "CREATE USER stranger; CREATE ROLE reader")
	to.interrupted(restore.Options{}, "data/")
	res, err := to.restoreCtx(t.Context(), restore.Options{Resume: true, Verify: restore.VerifyRows})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "clerk") || strings.Contains(w, "desk") }); i >= 0 {
		t.Errorf("of an account that it has made itself: %s", res.Warnings[i])
	}
	if got := to.client("", whoMay); got != want {
		t.Errorf("accounts of the source:\n%s\nof the copy:\n%s", want, got)
	}

	// Accounts that were created otherwise get no grants, in any attempt.
	to.client("", "DROP DATABASE "+r.db+"; DROP USER clerk; CREATE USER clerk IDENTIFIED BY 'another'; DROP SERVER shop")
	if res, err = to.restoreCtx(t.Context(), restore.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := to.client("", "SHOW GRANTS FOR clerk"); strings.Contains(got, "UPDATE") || !slices.Contains(res.Warnings, "account 'clerk'@'%' exists already and is left as it is") {
		t.Errorf("an account that was there: %s, %q", got, res.Warnings)
	}
	to.client("", "CREATE USER small; GRANT ALL ON "+r.db+".* TO small")
	for _, theirs := range []bool{true, false} {
		to.client("", "DROP DATABASE "+r.db+"; DROP USER clerk")
		to.interrupted(restore.Options{DSN: strings.Replace(target.DSN(""), "root@", "small@", 1)}, "data/")
		if theirs {
			to.client("", "CREATE USER clerk IDENTIFIED BY 'another'")
		} else {
			to.interrupted(restore.Options{Resume: true}, "data/")
		}
		if _, err = to.restoreCtx(t.Context(), restore.Options{Resume: true}); err != nil {
			t.Fatal(err)
		}
		if got := to.client("", "SHOW GRANTS FOR clerk"); strings.Contains(got, "UPDATE") == theirs {
			t.Errorf("an account that could not be made, and that somebody else has made since (%v): %s", theirs, got)
		}
	}
}

// TestAccountsByHostName: a server that resolves no names has accounts by a host's name in its
// table alone, such as the root@HOST that MariaDB makes with each server. Others come back.
func TestAccountsByHostName(t *testing.T) {
	cfg := config(lab.FlavorMariaDB)
	cfg.Settings = maps.Clone(cfg.Settings)
	if cfg.Settings == nil {
		cfg.Settings = map[string]string{}
	}
	cfg.Settings["skip_name_resolve"] = "OFF"
	r := newRig(t, labtest.MariaDB(t, cfg), "CREATE TABLE x (id int); CREATE USER clerk; GRANT SELECT ON x TO clerk; CREATE USER root@'far.example' IDENTIFIED BY 'x'; GRANT ALL ON *.* TO root@'far.example' WITH GRANT OPTION")
	r.backup(backup.Options{DSN: r.m.DSN(""), Cluster: true}, archive.Options{})
	to := &rig{t: t, m: other(t, server(t, lab.FlavorMariaDB)), db: r.db, repo: r.repo}
	to.client("", "CREATE USER root@'far.example'; FLUSH PRIVILEGES")
	res, err := to.restoreCtx(t.Context(), restore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(res.Warnings, func(w string) bool {
		return strings.Contains(w, "'far.example' is in the server's table and not in force")
	}) {
		t.Errorf("warnings: %q", res.Warnings)
	}
	if got := to.client("", "SHOW GRANTS FOR clerk"); !strings.Contains(got, "SELECT") {
		t.Errorf("grants: %s", got)
	}
}

// TestEventsComeLast: they run when they are made, and what they change is compared and
// replayed before.
func TestEventsComeLast(t *testing.T) {
	eachServer(t, func(t *testing.T, m *lab.MySQL) {
		r := newRig(t, m, "CREATE TABLE x (id int PRIMARY KEY); CREATE EVENT e ON SCHEDULE EVERY 1 YEAR DO DELETE FROM x;")
		r.backup(backup.Options{Checksums: true}, archive.Options{})
		want, target := r.native(r.db), r.db+"_copy"
		r.dropAfter(target)
		res, err := r.restoreCtx(t.Context(), restore.Options{Target: target, Create: true, Verify: restore.VerifyRows})
		if err != nil {
			t.Fatal(err)
		}
		var phases []string
		for _, p := range res.Phases {
			phases = append(phases, p.Name)
		}
		if i, j := slices.Index(phases, "verify"), slices.Index(phases, "events"); i < 0 || j < i {
			t.Errorf("phases: %q", phases)
		}
		r.compare(want, target)

		own := other(t, m)
		to := &rig{t: t, m: own}
		for _, state := range []string{"ON", "OFF"} {
			to.client("", "SET GLOBAL event_scheduler = "+state)
			held, release, err := load.HoldEvents(t.Context(), own.DSN("not_there_yet"))
			if err != nil || held != (state == "ON") {
				t.Fatalf("event_scheduler %s: held %v, %v", state, held, err)
			}
			if got := to.client("", "SELECT @@event_scheduler"); got != "OFF" {
				t.Errorf("held: %s", got)
			}
			if err := release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := to.client("", "SELECT @@event_scheduler"); got != state {
				t.Errorf("released: %s, and it was %s", got, state)
			}
		}
	})
}
