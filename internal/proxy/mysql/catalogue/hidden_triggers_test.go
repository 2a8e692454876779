package catalogue

import (
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// TestPartialRevokes reads what MySQL 8.0 and 9 answer to SHOW GRANTS with
// partial_revokes=ON, as their manual prints it: there is no such server here.
func TestPartialRevokes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lines   []string
		blind   []string
		seesAll bool
	}{
		{[]string{"GRANT SELECT, INSERT, TRIGGER ON *.* TO `u1`@`%`", "GRANT ALL PRIVILEGES ON `db1`.* TO `u1`@`%`"}, nil, true},
		{[]string{"GRANT SELECT, INSERT, TRIGGER ON *.* TO `u1`@`%`", "REVOKE INSERT ON `db1`.* FROM `u1`@`%`"}, nil, true},
		{[]string{"REVOKE INSERT, TRIGGER ON `db1`.* FROM `u1`@`%`", "REVOKE TRIGGER, UPDATE ON `d``b2`.* FROM `u1`@`%`"}, []string{"d`b2", "db1"}, true},
		{[]string{"REVOKE SELECT ON `db1`.* FROM `u1`@`%`"}, nil, false},
		{[]string{`REVOKE TRIGGER ON "d""b".* FROM "u1"@"%"`, "REVOKE TRIGGER ON plain.* FROM u1@localhost"}, []string{`d"b`, "plain"}, true},
		{[]string{"REVOKE ALL PRIVILEGES ON `db1`.* FROM `u1`@`%`"}, []string{"db1"}, false},
	} {
		r := &Reader{seesAll: true}
		for _, line := range tt.lines {
			r.revoked(line)
		}
		slices.Sort(r.names)
		if !slices.Equal(r.names, tt.blind) || r.seesAll != tt.seesAll || len(r.blind) != len(tt.blind) {
			t.Errorf("%q: blind in %q (%v), sees all %v; want %q, %v", tt.lines, r.names, r.blind, r.seesAll, tt.blind, tt.seesAll)
		}
		if len(r.names) > 0 && r.account != "u1@%" && r.account != "u1@localhost" {
			t.Errorf("%q: account %q", tt.lines, r.account)
		}
	}
	for version, want := range map[uint32]bool{80015: false, 80016: true, 90700: true} {
		if revokesPartly(myscan.Mode{Version: version}) != want {
			t.Errorf("version %d: %v", version, !want)
		}
	}
	if revokesPartly(myscan.Mode{Version: 110800, MariaDB: true}) {
		t.Error("MariaDB has no partial revokes")
	}
}
