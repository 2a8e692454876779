package mysql_test

import (
	"cmp"
	"net/url"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	dump "github.com/weirdb/weir/internal/backup/mysql"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// A replica that does not log what it replicates, MariaDB's default, has a log that cannot be
// replayed: backups have no position then, or a warning about it.
func TestReplicasWithoutALogOfTheirOwn(t *testing.T) {
	labtest.RequireMariaDB(t)
	cfg := config(lab.FlavorMariaDB)
	cfg.Settings["log-slave-updates"] = "OFF"
	r := newRig(t, labtest.MariaDB(t, cfg), "CREATE TABLE t (id int PRIMARY KEY); CREATE USER plain IDENTIFIED BY 'p'; GRANT ALL ON *.* TO plain; REVOKE SUPER, REPLICA MONITOR ON *.* FROM plain")
	u, err := url.Parse(r.m.DSN(r.db))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("plain", "p")
	for i, c := range []struct {
		change, dsn string
		position    bool
		warns, log  string
	}{
		{"DO 0", "", true, "", ""},
		{"CHANGE MASTER TO master_host = '127.0.0.1', master_port = 1, master_user = 'x'", "", true, "if the server replicates", ""},
		{"START SLAVE SQL_THREAD", "", false, "no log can be replayed", "log_slave_updates"},
		{"START SLAVE SQL_THREAD", u.String(), true, "", ""}, // who may not see it, and it has replicated nothing
		{"STOP SLAVE; SET GLOBAL gtid_slave_pos = CONCAT(@@gtid_binlog_pos, ',7-99-1000')", u.String(), true, "if the server replicates", ""},
	} {
		r.client("", c.change)
		m := r.backup(backup.Options{DSN: c.dsn}, archive.Options{}).Manifest
		if w := strings.Join(m.Warnings, "\n"); (m.Position.Binlog != "") != c.position || (w == "") != (c.warns == "") || !strings.Contains(w, c.warns) {
			t.Errorf("%d: the position is %+v, with the warnings %q", i, m.Position, w)
		}
		_, err := dump.StreamBinlog(t.Context(), dump.BinlogOptions{DSN: cmp.Or(c.dsn, r.m.DSN("")), Storage: r.logs(), UntilEnd: true})
		if (err == nil) != (c.log == "") || err != nil && !strings.Contains(err.Error(), c.log) {
			t.Errorf("%d: to archive the log gives %v", i, err)
		}
	}
}
