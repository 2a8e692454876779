package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// isolate gives a test its own run directories: no other test sweeps them, and it does not sweep
// those of others.
func isolate(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "labtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("WEIR_LAB_DIR", dir)
	return dir
}

// deadProcess returns the identity of a process that has ended.
func deadProcess(t *testing.T) procID {
	t.Helper()
	p, err := startProcess(command{path: "/bin/true", dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	return p.id
}

func makeDir(t *testing.T, base string, owner procID, ownerContent string) string {
	t.Helper()
	path := filepath.Join(userDirPath(base), fmt.Sprintf("%d-%d-x", owner.pid, owner.start))
	if err := os.MkdirAll(filepath.Join(path, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if ownerContent != "" {
		if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(ownerContent), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestSweepTakesOnlyTheDead(t *testing.T) {
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := deadProcess(t)
	reused := procID{self.id.pid, self.id.start + 1} // our pid in an earlier life
	boot := bootID() + "\n"
	old := time.Now().Add(-2 * graceNoLock)
	tests := []struct {
		name  string
		setup func(t *testing.T, base string) string
		gone  bool
	}{
		{"dead owner", func(t *testing.T, base string) string { return makeDir(t, base, dead, boot) }, true},
		{"reused pid", func(t *testing.T, base string) string { return makeDir(t, base, reused, boot) }, true},
		{"living owner", func(t *testing.T, base string) string { return makeDir(t, base, self.id, boot) }, false},
		{"locked by an owner in another namespace", func(t *testing.T, base string) string {
			path := makeDir(t, base, dead, boot)
			f, err := os.Open(filepath.Join(path, ownerFile))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			return path
		}, false},
		{"no owner file yet", func(t *testing.T, base string) string { return makeDir(t, base, dead, "") }, false},
		{"no owner file ever", func(t *testing.T, base string) string {
			path := makeDir(t, base, dead, "")
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
			return path
		}, true},
		{"somebody else's name", func(t *testing.T, base string) string {
			path := filepath.Join(userDirPath(base), "my-own-notes")
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			return path
		}, false},
		{"symbolic link", func(t *testing.T, base string) string {
			if err := os.Mkdir(userDirPath(base), 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(userDirPath(base), fmt.Sprintf("%d-%d-x", dead.pid, dead.start))
			if err := os.Symlink(t.TempDir(), path); err != nil {
				t.Fatal(err)
			}
			return path
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := isolate(t)
			path := tt.setup(t, base)
			removed, err := sweep([]string{base})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(path); os.IsNotExist(err) != tt.gone {
				t.Errorf("after Sweep: %v, want gone %v", err, tt.gone)
			}
			if got := strings.Contains(strings.Join(removed, "\n"), path); got != tt.gone {
				t.Errorf("reported as removed: %v, want %v", got, tt.gone)
			}
		})
	}
}

func TestSweepOfAnotherUsersDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give a directory away")
	}
	base := isolate(t)
	path := makeDir(t, base, deadProcess(t), bootID()+"\n")
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := sweep([]string{base}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("removed another user's directory: %v", err)
	}
}

func TestSweepEndsOrphansOnly(t *testing.T) {
	base := isolate(t)
	// Not startProcess: these are to be ended by the sweep, not by a Wait of ours.
	var orphan, bystander [2]*exec.Cmd
	for i := range 2 {
		for _, c := range []**exec.Cmd{&orphan[i], &bystander[i]} {
			*c = exec.Command("/bin/sleep", "600")
			if err := (*c).Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = (*c).Process.Kill(); _ = (*c).Wait() })
		}
	}
	var list strings.Builder
	fmt.Fprintln(&list, bootID())
	for i := range 2 {
		st, err := readStat(orphan[i].Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&list, "%d %d\n", st.id.pid, st.id.start)
		// The right pid, another start: a pid that was reused.
		fmt.Fprintf(&list, "%d %d\n", bystander[i].Process.Pid, 1)
	}
	list.WriteString("garbage\n1 1\n-1 5\n")
	makeDir(t, base, deadProcess(t), list.String())
	if _, err := sweep([]string{base}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if st, err := readStat(orphan[i].Process.Pid); err == nil && st.state != 'Z' {
			t.Errorf("orphan %d still runs", i)
		}
		if st, err := readStat(bystander[i].Process.Pid); err != nil || st.state == 'Z' {
			t.Errorf("bystander %d was ended", i)
		}
	}
}

func TestSweepLeavesPidsOfAnEarlierBoot(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	endOrphans(fmt.Sprintf("another-boot\n%d %d\n", st.id.pid, st.id.start))
	if !st.id.alive() {
		t.Error("ended a process on the word of an earlier boot")
	}
}

func TestProcessTreeIsKilledWhole(t *testing.T) {
	// A shell whose grandchildren are in sessions of their own, as
	// PostgreSQL's children are: a process group would not reach them.
	p, err := startProcess(command{
		path: "/bin/sh", args: []string{"-c", "setsid sleep 600 & setsid sleep 600 & wait"}, dir: "/",
	})
	if err != nil {
		t.Fatal(err)
	}
	var below []procID
	err = poll(t.Context(), func() bool { below = descendants(p.id.pid); return len(below) >= 2 })
	if err != nil {
		t.Fatal(err)
	}
	p.killTree()
	for _, id := range append(below, p.id) {
		if id.alive() {
			t.Errorf("process %d survived", id.pid)
		}
	}
}

func TestFindPostgresPrefersNewest(t *testing.T) {
	if a, b := majorOf("/usr/lib/postgresql/9.6/bin"), majorOf("/usr/lib/postgresql/17/bin"); a >= b {
		t.Errorf("9.6 counts as %d, 17 as %d", a, b)
	}
	t.Setenv(EnvPostgresBin, "/nonexistent")
	if _, _, err := FindPostgres(t.Context(), ""); err == nil || NotInstalled(err) {
		t.Errorf("a wrong $%s: %v, want an error of its own", EnvPostgresBin, err)
	}
	err := error(&NotInstalledError{"PostgreSQL", []string{"here", "there"}, "apt-get install postgresql"})
	if want := "find PostgreSQL: not in here, there; install it with: apt-get install postgresql"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if !NotInstalled(fmt.Errorf("wrapped: %w", err)) {
		t.Error("NotInstalled does not see through wrapping")
	}
}

func TestParseVersion(t *testing.T) {
	tests := []struct {
		in   string
		want version
		ok   bool
	}{
		{"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", version{15, 18}, true},
		{"postgres (PostgreSQL) 9.6.24", version{9, 6}, true},
		{"postgres (PostgreSQL) 19devel", version{19, 0}, true},
		{"postgres (PostgreSQL) 18beta2", version{18, 0}, true},
		{"PgBouncer 1.18.0\nlibevent 2.1.12-stable\n", version{1, 18}, true},
		{"", version{}, false},
		{"no number", version{}, false},
	}
	for _, tt := range tests {
		got, err := parseVersion(tt.in)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseVersion(%q) = %v, %v; want %v", tt.in, got, err, tt.want)
		}
	}
	if v := (version{1, 21}); !v.atLeast(1, 21) || v.atLeast(1, 22) || v.atLeast(2, 0) || !v.atLeast(0, 99) {
		t.Error("atLeast is wrong around 1.21")
	}
}

func TestParseStat(t *testing.T) {
	const tail = " S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0"
	for _, name := range []string{"cat", "a b", "a) S 1 (b", ""} {
		got, err := parseStat("42 (" + name + ")" + tail)
		if want := (procStat{procID{42, 4711}, 7, 'S'}); err != nil || got != want {
			t.Errorf("command %q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "42", "42 (cat", "x (cat)" + tail, "42 (cat) S 7"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", bad, got)
		}
	}
}

func TestParseDirName(t *testing.T) {
	for name, want := range map[string]procID{
		"12-345-abc":   {12, 345},
		"12-345-":      {},
		"12-345":       {},
		"-1-345-abc":   {},
		"x-345-abc":    {},
		"12-x-abc":     {},
		"12-345-abc-d": {},
		"my-own-notes": {},
	} {
		got, ok := parseDirName(name)
		if want == (procID{}) {
			if ok {
				t.Errorf("%s names owner %v, want none", name, got)
			}
		} else if got != want || !ok {
			t.Errorf("%s names owner %v, %v; want %v", name, got, ok, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (cat) S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
	f.Add(") (")
	f.Fuzz(func(t *testing.T, line string) {
		st, err := parseStat(line)
		if err == nil && st.state == 0 {
			t.Errorf("no state in %q, and no error", line)
		}
	})
}

func FuzzFirstAnswer(f *testing.F) {
	f.Add("R\x00\x00\x00\x08\x00\x00\x00\x00")
	f.Add("E\x00\x00\x00\x0dC57P03\x00\x00\x00")
	f.Add("E\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, in string) {
		err := readFirstAnswer(strings.NewReader(in))
		if err == nil && in[0] != 'R' && in[0] != 'E' {
			t.Errorf("%q counts as a server's answer", in)
		}
	})
}

func TestFirstAnswer(t *testing.T) {
	tests := []struct {
		in    string
		ready bool
	}{
		{"R\x00\x00\x00\x08\x00\x00\x00\x00", true},
		{"E\x00\x00\x00\x0cC28P01\x00\x00", true},
		{"E\x00\x00\x00\x0cC57P03\x00\x00", false},
		{"E\x00\x00\x00\x0cC57P0", false},
		{"R\x00\x00\x00\x03", false},
		{"X\x00\x00\x00\x08\x00\x00\x00\x00", false},
		{"", false},
	}
	for _, tt := range tests {
		if err := readFirstAnswer(strings.NewReader(tt.in)); (err == nil) != tt.ready {
			t.Errorf("%q: %v, want ready %v", tt.in, err, tt.ready)
		}
	}
}

func TestQuoteSetting(t *testing.T) {
	for in, want := range map[string]string{
		"on": "'on'", "it's": `'it\'s'`, `a\b`: `'a\\b'`, "": "''", "a\nb": `'a\nb'`,
	} {
		if got := quoteSetting(in); got != want {
			t.Errorf("quoteSetting(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestParseDurability(t *testing.T) {
	for _, d := range []Durability{Prod, Fast} {
		if got, err := ParseDurability(d.String()); got != d || err != nil {
			t.Errorf("ParseDurability(%s) = %v, %v", d, got, err)
		}
	}
	if _, err := ParseDurability("Prod"); err == nil {
		t.Error("ParseDurability(Prod) succeeded")
	}
}

func TestSignalOfADeadProcessIsNoError(t *testing.T) {
	if err := deadProcess(t).signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestRunDirsAreNotMadeWhereOthersMayWrite(t *testing.T) {
	base := isolate(t)
	if err := os.Mkdir(userDirPath(base), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(userDirPath(base), 0o777); err != nil {
		t.Fatal(err)
	}
	if d, err := newRunDir(base); err == nil {
		t.Errorf("made %s", d.path)
	}
}
