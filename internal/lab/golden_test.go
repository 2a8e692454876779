package lab

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// coldCache gives a test a cache of its own, and a directory for data that the
// server's user can reach.
func coldCache(t *testing.T) (cache, work string) {
	t.Helper()
	cache, work = t.TempDir(), isolate(t)
	t.Setenv("XDG_CACHE_HOME", cache)
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	return cache, work
}

func findPostgresOrSkip(t *testing.T) postgresBinaries {
	t.Helper()
	bin, err := findPostgres(t.Context(), "")
	if NotInstalled(err) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestInitDataSurvivesASpoiltCache(t *testing.T) {
	cache, work := coldCache(t)
	as, err := unprivileged("postgres")
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	server := dataTemplate{name: "server-1", key: "a build", make: func(_ context.Context, dst string, _ *identity) error {
		made++
		return os.WriteFile(filepath.Join(dst, "VERSION"), []byte("1"), 0o600)
	}}
	initialise := func(name string, wantMade int) {
		t.Helper()
		dst := filepath.Join(work, name)
		if err := os.Mkdir(dst, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := as.chown(dst); err != nil {
			t.Fatal(err)
		}
		if err := initData(t.Context(), server, dst, as, Fast, false); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dst, "VERSION"))
		if err != nil || string(content) != "1" || made != wantMade {
			t.Errorf("%s: version %q, %v; made %d times, want %d", name, content, err, made, wantMade)
		}
		if _, err := os.Lstat(filepath.Join(dst, "zzz")); err == nil {
			t.Errorf("%s: it has what was put into the cache", name)
		}
	}
	initialise("made", 1)
	golden, err := filepath.Glob(filepath.Join(cache, "weir", "lab", "server-1-*"))
	if err != nil || len(golden) != 2 { // the directory and its lock
		t.Fatalf("cache holds %v (%v), want one directory and its lock", golden, err)
	}
	initialise("copied", 1)
	// An entry that is neither file nor directory cannot be copied: half-way through, the copy
	// is given up, and the server's data is made anew in its place.
	if err := os.Symlink("nowhere", filepath.Join(golden[0], "zzz")); err != nil {
		t.Fatal(err)
	}
	initialise("in spite of it", 2)
}

func TestCopyTreeKeepsModesAndContent(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	files := map[string]os.FileMode{"a": 0o600, "sub/b": 0o640, "sub/deep/c": 0o400}
	for name, mode := range files {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTree(t.Context(), src, dst, nil, false); err != nil {
		t.Fatal(err)
	}
	for name, mode := range files {
		path := filepath.Join(dst, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if content, err := os.ReadFile(path); string(content) != name || err != nil || info.Mode() != mode {
			t.Errorf("%s: %q, %v, mode %v; want mode %v", name, content, err, info.Mode(), mode)
		}
	}
	if err := copyTree(t.Context(), src, dst, nil, false); err == nil {
		t.Error("copied over what was there")
	}
}

// Zeros of a fast server's files take no memory, and are there all the same.
func TestCopyTreeLeavesHoles(t *testing.T) {
	src := t.TempDir()
	content := make([]byte, 5*copyBlock+10)
	copy(content[copyBlock+7:], "in the middle")
	if err := os.WriteFile(filepath.Join(src, "a"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	blocks := map[bool]int64{}
	for _, holes := range []bool{false, true} {
		dst := t.TempDir()
		if err := copyTree(t.Context(), src, dst, nil, holes); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dst, "a")
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("holes %t: %d bytes, %v; want the %d of the original", holes, len(got), err, len(content))
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		blocks[holes] = st.Blocks
		for _, again := range []bool{false, true} {
			third := t.TempDir()
			if err := copyTree(t.Context(), dst, third, nil, again); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(third, "a")); err != nil || !bytes.Equal(got, content) {
				t.Errorf("a copy with holes %t of one with holes %t: %d bytes, %v; want the %d of the original", again, holes, len(got), err, len(content))
			}
		}
	}
	if blocks[true] >= blocks[false] && blocks[false]*512 >= int64(len(content)) { // no file system that finds holes itself
		t.Errorf("%d blocks with holes, %d without", blocks[true], blocks[false])
	}
}

// A program is asked for its version once, and again when it is another one.
func TestVersionIsAskedOnce(t *testing.T) {
	dir := t.TempDir()
	program, asked := filepath.Join(dir, "server"), filepath.Join(dir, "asked")
	for i, want := range []string{"version 1.2", "version 1.2", "version 1.2.3"} {
		if i != 1 {
			if err := os.Remove(program); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			script := "#!/bin/sh\necho x >>" + asked + "\necho " + want + "\n"
			if err := os.WriteFile(program+".new", []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := copyReadable(program+".new", program); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := askVersion(t.Context(), program, "--version"); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%d: %q, %v; want %q", i, got, err, want)
		}
	}
	if got, err := os.ReadFile(asked); err != nil || string(got) != "x\nx\n" {
		t.Errorf("asked %q, %v; want twice", got, err)
	}
}

func TestCacheOthersMayWriteIsRefused(t *testing.T) {
	cache, _ := coldCache(t)
	dir, err := cacheDir()
	if err != nil || !strings.HasPrefix(dir, cache) {
		t.Fatalf("cache %s, %v; want it below %s", dir, err, cache)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if dir, err := cacheDir(); err == nil {
		t.Errorf("accepted %s, which anybody may write", dir)
	}
}

func TestSlowDiskNamesTheMissingCompiler(t *testing.T) {
	_, work := coldCache(t)
	t.Setenv("PATH", "/nonexistent")
	_, err := watchDisk(t.Context(), work, diskWatch{latency: 1000}, nil)
	if err == nil || !strings.Contains(err.Error(), "install one with: apt-get install gcc") {
		t.Errorf("error %v, want the command that installs a compiler", err)
	}
}
