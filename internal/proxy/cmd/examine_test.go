//go:build linux

package proxycmd

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/lab/labtest/pgtrap"
	"github.com/weirdb/weir/internal/measure/check"
)

// weir config check --connect looks at the servers that a file names.
func TestExamine(t *testing.T) {
	clitest.ClearEnvironment(t)
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"idle_session_timeout": "1h"}})
	my := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	file := filepath.Join(t.TempDir(), "weir.yaml")
	look := func(code int, text string) (map[string]check.Check, clitest.Result) {
		t.Helper()
		clitest.Write(t, file, text)
		r := program.Call(t, "config", "check", "--connect", "--json", file)
		if r.Code != code {
			t.Fatalf("%s\nwant exit code %d", r, code)
		}
		found := make(map[string]check.Check)
		for _, c := range clitest.Decode[[]check.Check](t, r.Stdout) {
			_, what, ok := strings.Cut(c.Name, pg.Addr()+" ")
			if !ok {
				_, what, ok = strings.Cut(c.Name, my.Addr()+" ")
				what = "my " + what
			}
			if !ok {
				what = c.Name
			}
			found[what] = c
		}
		return found, r
	}
	both := "postgres: " + pg.DSN("postgres") + "\nmysql: " + my.DSN("") + "\npool_size: 20\n"
	found, r := look(cli.ExitFine, both)
	for what, want := range map[string]check.State{
		"answers": check.Yes, "role": check.Yes, "logins": check.Yes, "connections": check.Yes,
		"durability": check.Limited, "idle sessions": check.Limited, // of a server that never flushes
		"my answers": check.Yes, "my role": check.Yes, "my logins": check.Yes, "my connections": check.Yes,
		"my triggers": check.Yes, "my durability": check.Limited,
	} {
		if got := found[what]; got.State != want || got.Detail == "" {
			t.Errorf("%s: %+v, want %s\n%s", what, got, want, r.Stdout)
		}
	}
	found, r = look(cli.ExitShortfall, "postgres: "+pg.DSN("postgres")+"\npool_size: 5000\n")
	if c := found["connections"]; c.State != check.No || !strings.Contains(c.Hint, "--pool-size") {
		t.Errorf("a pool that does not fit: %+v", c)
	}
	if !strings.Contains(r.Stderr, "1 of") {
		t.Errorf("%s", r)
	}
	caught := pgtrap.SearchPath(t, pg.DSN("postgres"))
	look(cli.ExitFine, both)
	if by := caught(); by != "" {
		t.Errorf("what somebody has put into the search path was called: %s", by)
	}
	addr := labtest.Addrs(t, 1)[0]
	clitest.Write(t, file, "postgres: postgres://postgres:secret@"+addr+"/postgres\n")
	r = program.Call(t, "config", "check", "--connect", file)
	if r.Code != cli.ExitShortfall || !strings.Contains(r.Stdout, addr+" answers") || strings.Contains(r.String(), "secret") {
		t.Errorf("nobody there: %s", r)
	}
	// Without --connect the server that is not there is not asked.
	only := clitest.Decode[[]check.Check](t, program.Must(t, "config", "check", "--json", file))
	if len(only) != 1 || only[0].State != check.Yes || only[0].Name != "configuration" {
		t.Errorf("without --connect: %+v", only)
	}
	clitest.Write(t, file, "pool_sise: 3\n")
	program.Refuse(t, cli.ExitUsage, []string{"pool_size"}, "config", "check", "--connect", "--of", "proxy", file)
}
