package archivetest

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/weirdb/weir/internal/backup/archive"
)

// EnvDamage is the environment variable with the number of damages, for a longer run than a
// test's.
const EnvDamage = "WEIR_DAMAGE"

// DamageTimes returns the number in EnvDamage. Default: 30.
func DamageTimes() int {
	if n, err := strconv.Atoi(os.Getenv(EnvDamage)); err == nil {
		return n
	}
	return 30
}

// Damage damages the backup id below dir the given number of times, in one place each time, and
// repairs it again: a byte is changed, or a file is cut, extended, emptied or removed. Both
// reading the backup and restore must detect each damage, and report nothing about the
// undamaged backup.
func Damage(t *testing.T, dir, id string, times int, restore func() error) {
	t.Helper()
	root := filepath.Join(dir, id)
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files in the backup: %v", len(files), err)
	}
	repo, err := archive.OpenRepository(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	whole := func() bool {
		r, err := archive.Open(t.Context(), repo, id, archive.ReadOptions{})
		if err != nil {
			return false
		}
		v, err := r.Verify(t.Context(), archive.VerifyOptions{})
		return err == nil && v.OK()
	}
	if !whole() {
		t.Fatal("the backup is damaged from the beginning")
	}
	if err := restore(); err != nil {
		t.Fatalf("the backup as it is: %v", err)
	}
	const seed = 20261122
	rng := rand.New(rand.NewPCG(seed, uint64(times)))
	for n := range times {
		file := files[n%len(files)]
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad, what := damaged(rng, good)
		if bad == nil {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, bad, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if whole() {
			t.Errorf("damage %d, %s of %s: reading the backup does not find it", n, what, file)
		}
		if restore() == nil {
			t.Errorf("damage %d, %s of %s: a restore does not find it", n, what, file)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !whole() {
		t.Error("the damage was not mended")
	}
}

// damaged returns a file's bytes with one damage, or nil if the file is to be removed.
func damaged(rng *rand.Rand, good []byte) (bad []byte, what string) {
	at := rng.IntN(len(good))
	bad = append([]byte{}, good...)
	switch rng.IntN(20) {
	case 0:
		return nil, "removal"
	case 1:
		return []byte{}, "emptying"
	case 2, 3, 4:
		return bad[:at], "a cut"
	case 5, 6:
		return append(bad, byte(rng.IntN(256))), "a byte too many"
	}
	bad[at] ^= byte(1 + rng.IntN(255))
	return bad, "a changed byte"
}
