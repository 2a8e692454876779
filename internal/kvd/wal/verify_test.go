package wal_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.txt anew")

// verify returns the findings and the summary, a line of JSON each.
func verify(t *testing.T, disk *waltest.Disk) (string, wal.Summary) {
	t.Helper()
	before := disk.Calls()
	var b strings.Builder
	line := func(v any) {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		must(t, enc.Encode(v))
	}
	sum, err := wal.VerifyDisk(disk, func(f wal.Finding) { line(f) })
	must(t, err)
	line(sum)
	if disk.Calls() != before {
		t.Error("verify changed something")
	}
	return b.String(), sum
}

func TestVerify(t *testing.T) {
	t.Parallel()
	flip := func(file string, at int) func(*waltest.Disk) {
		return func(d *waltest.Disk) {
			b := d.Bytes(file)
			b[at] ^= 1
			d.SetBytes(file, b)
		}
	}
	tests := []struct {
		name     string
		damage   func(*waltest.Disk)
		problems int
	}{
		{"sound", func(*waltest.Disk) {}, 0},
		{"middle", flip(seg2, 300), 1},
		{"torn", func(d *waltest.Disk) { start, _ := lastRound(t, d, seg3); flip(seg3, start+40)(d) }, 0},
		{"header", flip(seg1, 50), 1},
		{"missing", func(d *waltest.Disk) { d.SetBytes(seg2, nil) }, 1},
		{"snapshot", flip(snap2, 50), 1},
		{"hole", func(d *waltest.Disk) { d.SetBytes(seg1, nil); flip(snap2, 50)(d) }, 2},
		{"identity", flip("identity", 12), 1},
		{"strange", func(d *waltest.Disk) {
			d.SetBytes("notes.txt", []byte("mine"))
			d.SetBytes("identity.tmp", []byte("y"))
		}, 0},
		{"empty", func(d *waltest.Disk) {
			for _, f := range []string{"identity", seg1, seg2, seg3, snap2} {
				d.SetBytes(f, nil)
			}
		}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			disk := sample(t)
			tt.damage(disk)
			got, sum := verify(t, disk)
			if sum.Problems != tt.problems {
				t.Errorf("%d problems, want %d", sum.Problems, tt.problems)
			}
			// Verify and Open agree.
			if _, _, err := try(t, disk.Clone()); tt.name != "snapshot" && tt.name != "empty" && (err != nil) != (tt.problems > 0) {
				t.Errorf("verify finds %d problems, opening %v", tt.problems, err)
			}
			golden(t, tt.name, got)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "verify-"+name+".txt")
	if *rewrite {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestVerifyOfALogInUse(t *testing.T) {
	t.Parallel()
	disk := waltest.NewDisk()
	l, _, err := openOn(disk)
	must(t, err)
	if _, err := wal.VerifyDisk(disk, func(wal.Finding) {}); err == nil {
		t.Error("a log in use is verified")
	}
	must(t, l.Close())
	if _, sum := verify(t, disk); !sum.Clean || sum.Problems != 0 {
		t.Errorf("summary %+v", sum)
	}
}
