package backupbench

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
)

// Every row arrives once, of whole tables and of ranges, and what cannot be read back is
// noticed.
func TestFloorCopiesEveryRow(t *testing.T) {
	server := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast})
	ctx := t.Context()
	o := Options{
		Options: suite.Options{Out: t.TempDir()}, DSN: server.DSN("postgres"), Binary: weir.Path(t), Floor: true,
		Sides: []string{"none"}, Plan: Plan{Rounds: 1},
	}.withDefaults()
	r, src := filled(t, o, Size{"shop", 300_000})
	ways := r.sides()
	if len(ways) != 1 || ways[0].name != floorSide || len(of(ways, restores)) != 0 {
		t.Fatalf("sides %+v, want the floor, of backups alone", ways)
	}
	if _, err := r.dump(ctx, ways[0], src); err != nil {
		t.Fatal(err)
	}
	whole := rowsBelow(t, r.dirOf(ways[0]))
	if int64(len(whole)) != src.sums.rows || src.sums.rows == 0 {
		t.Errorf("%d rows were copied of %d", len(whole), src.sums.rows)
	}
	dir := t.TempDir()
	if err := copyRows(ctx, r.engine.place(sourceDatabase).dsn, dir, 2, 16<<10); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.2.zst"))
	if err != nil || len(files) == 0 {
		t.Errorf("no table was copied in ranges: %v", err)
	}
	if ranges := rowsBelow(t, dir); !slices.Equal(whole, ranges) {
		t.Errorf("in ranges %d rows were copied, which are not the %d of whole tables", len(ranges), len(whole))
	}
	if err := os.Truncate(files[0], 40); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dir, t.TempDir()} {
		if _, err := run(ctx, ways[0].check(dir)); err == nil || !strings.Contains(err.Error(), "read rows") {
			t.Errorf("of a file that is cut, or none, the check said %v", err)
		}
	}
}

// rowsBelow are the rows of a floor's files, sorted.
func rowsBelow(t *testing.T, dir string) []string {
	t.Helper()
	var b bytes.Buffer
	if err := readRows(dir, &b); err != nil {
		t.Fatal(err)
	}
	rows := slices.Collect(strings.Lines(b.String()))
	slices.Sort(rows)
	return rows
}
