package kvcmd

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// TestKVDirectories starts replicas on directories of other replicas, on damaged, old and empty
// ones. No replica starts with less than it had acknowledged.
func TestKVDirectories(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{})
	for i := range 20 {
		program.Must(t, "kv", "put", fmt.Sprintf("k/%d", i), strings.Repeat("v", 1000))
	}
	t.Run("another's", func(t *testing.T) { r.anothersTest(t) })
	t.Run("torn", func(t *testing.T) { r.tornTest(t) })
	t.Run("older copy", func(t *testing.T) { r.olderTest(t) })
	t.Run("corrupt, then replaced", func(t *testing.T) { r.corruptTest(t) })
}

func (r *kvRig) anothersTest(t *testing.T) {
	r = r.in(t)
	args, dir := r.command(3), r.node(3).DataDir()
	free := labtest.Addrs(t, 3)
	elsewhere := []string{"--listen=" + free[0], "--resp=" + free[1], "--admin=" + free[2]}
	// One process per directory.
	strayed(t, slices.Concat(args, elsewhere)...).ends(cli.ExitFailed, "lock "+dir, fmt.Sprintf("process %d uses it", r.node(3).PID()))
	program.Refuse(t, cli.ExitFailed, []string{"uses it"}, "kv", "verify", dir)
	// One admin address per process.
	strayed(t, args...).ends(cli.ExitFailed, "listen for --admin", "an address of its own")
	// The puts are on the disks of a majority, which this one need not be part of.
	testkit.Eventually(t, "replica 3 has on its disk what was put", func() bool { return r.report(3).Durable >= 20 })
	r.node(3).Kill()
	strayed(t, slices.Concat(args, elsewhere, []string{"--id=2"})...).ends(cli.ExitFailed, "belongs to replica 3, not to 2", "use the directory of this replica")
	strayed(t, append(args, "--cluster=another")...).ends(cli.ExitFailed, `belongs to cluster "weir", not to "another"`)
	program.Must(t, "kv", "verify", dir)
	sum := clitest.Decode[struct {
		Summary wal.Summary
		Files   []wal.Finding
	}](t, program.Must(t, "kv", "verify", dir, "--json"))
	if sum.Summary.Problems != 0 || sum.Summary.Identity.Replica != 3 || sum.Summary.Last < 20 || len(sum.Files) < 2 {
		t.Errorf("verify --json: %+v", sum)
	}
	r.restart(3)
	r.await()
}

// segment is the file that a replica's log ends in, and where its rounds end.
func (r *kvRig) segment(id int) (path string, end int) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.node(id).DataDir(), "*.wal"))
	if err != nil || len(files) == 0 {
		r.t.Fatalf("segments of replica %d: %v, %v", id, files, err)
	}
	path = slices.Max(files)
	content, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	return path, len(strings.TrimRight(string(content), "\x00"))
}

// flip changes a byte of a file.
func flip(t *testing.T, path string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, offset)
	b[0] ^= 0x55
	_, writing := f.WriteAt(b, offset)
	if err := errors.Join(err, writing, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// The torn end of the log after a crash is cut off, and the entries are sent again by other
// replicas.
func (r *kvRig) tornTest(t *testing.T) {
	r = r.in(t)
	r.node(2).Kill()
	path, end := r.segment(2)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("half of a write that never ended"), int64(end+7)/8*8)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if out := program.Must(t, "kv", "verify", r.node(2).DataDir()); !strings.Contains(out, "cut short") {
		t.Errorf("verify does not tell of the torn end:\n%s", out)
	}
	program.Must(t, "kv", "put", "torn", "written meanwhile")
	r.restart(2)
	r.await()
	r.logged(2, "a write that a crash cut short was cut off", filepath.Base(path))
	testkit.Eventually(t, "the replica has what was written meanwhile", func() bool {
		return program.Call(t, "kv", "get", "torn", "--weak", r.alone(2)).Stdout == "written meanwhile\n"
	})
}

// A replica that comes back with an older copy of its directory, or with an empty one, is
// refused.
func (r *kvRig) olderTest(t *testing.T) {
	r = r.in(t)
	leader := r.leader(1, 2, 3)
	id := leader%3 + 1
	dir, old := r.node(id).DataDir(), filepath.Join(t.TempDir(), "old")
	args := r.command(id)
	r.node(id).Kill()
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	r.restart(id)
	r.await()
	for i := range 5 {
		program.Must(t, "kv", "put", "older", fmt.Sprint(i))
	}
	// Leaders remember. Whichever it meets first is to be one that does.
	others := []int{id%3 + 1, (id+1)%3 + 1}
	for _, other := range others {
		testkit.Eventually(t, fmt.Sprintf("replica %d leads and knows what the replica has", other), func() bool {
			if r.leader(1, 2, 3) != other {
				program.Must(t, "kv", "member", "transfer", fmt.Sprint(other))
				return false
			}
			s := r.report(other)
			return s.Leader == uint64(other) && s.Members[id-1].Match == s.Last && s.Commit == s.Last
		})
	}
	r.node(id).Kill()
	newer := dir + ".newer" // beside it: t.TempDir may be on another file system
	if err := os.Rename(dir, newer); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{old, t.TempDir()} {
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		strayed(t, args...).ends(cli.ExitFailed, fmt.Sprintf("replica %d acknowledged the log up to entry", id), "older copy", "weir kv member replace")
		testkit.Eventually(t, "one of the others logs that it has refused the replica", func() bool {
			return slices.ContainsFunc(others, func(other int) bool {
				return holdsAll(r.node(other).LogTail(10_000), "a replica is refused", fmt.Sprintf("peer=%d", id))
			})
		})
		program.Must(t, "kv", "put", "older", "without it")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(newer, dir); err != nil {
		t.Fatal(err)
	}
	r.restart(id)
	r.await()
}

// Damage is reported and refused, and the member is replaced as the documentation says.
func (r *kvRig) corruptTest(t *testing.T) {
	r = r.in(t)
	lost := 2 // replicas dial those with smaller numbers; this one dials one, in the end
	if r.leader(1, 2, 3) == lost {
		lost = 3
	}
	args := r.command(lost)
	r.node(lost).Kill()
	path, end := r.segment(lost)
	flip(t, path, int64(end/2))
	file := filepath.Base(path)
	program.Refuse(t, cli.ExitShortfall, []string{file, "at byte ", "1 problems in " + r.node(lost).DataDir()}, "kv", "verify", r.node(lost).DataDir())
	found := clitest.Decode[struct{ Files []wal.Finding }](t, program.Call(t, "kv", "verify", r.node(lost).DataDir(), "--json").Stdout)
	i := slices.IndexFunc(found.Files, func(f wal.Finding) bool { return f.Problem != "" })
	if i < 0 || found.Files[i].File != file || found.Files[i].Offset <= 0 || found.Files[i].Offset > int64(end/2) {
		t.Errorf("verify --json: %+v", found)
	}
	strayed(t, args...).ends(cli.ExitFailed, file+" is corrupt at offset ", "weir kv member replace")
	program.Must(t, "kv", "put", "without", "the lost one")
	r.replaceTest(lost, 4)
	// The old directory, even when it is whole again, is of no more use.
	flip(t, path, int64(end/2))
	p := strayed(t, args...)
	p.saysItIsNoMember(lost)
	if answers("http://"+r.AdminAddrs()[lost-1]+"/readyz") == http.StatusOK {
		t.Error("/readyz of a replica that was replaced: 200")
	}
}

// replaceTest follows docs/kv-operating.md, "A disk is lost or damaged".
func (r *kvRig) replaceTest(lost, id int) {
	t := r.t
	t.Helper()
	free := labtest.Addrs(t, 3)
	_, redis, _ := strings.Cut(free[1], ":")
	member := fmt.Sprintf("%d=%s/%s", id, free[0], redis)
	var peers []string
	for i, addr := range r.PeerAddrs() {
		peers = append(peers, fmt.Sprintf("%d=%s", i+1, addr))
	}
	p := strayed(t, "kv", "serve", "--id", fmt.Sprint(id), "--join", "--peers", strings.Join(append(peers, member), ","),
		"--data", filepath.Join(t.TempDir(), "data"), "--admin", free[2])
	p.says("weir kv serve starts")
	admin := "http://" + free[2]
	testkit.Eventually(t, "the new replica runs", func() bool { return answers(admin+"/healthz") == http.StatusOK })
	if code, body := clitest.Get(t, admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "waits to be added to the cluster (weir kv member add)") {
		t.Errorf("/readyz before it is added: %d %s", code, body)
	}
	program.Refuse(t, cli.ExitFailed, []string{fmt.Sprintf("replica %d is not a learner", id)}, "kv", "member", "replace", fmt.Sprint(lost), fmt.Sprint(id))
	program.Must(t, "kv", "member", "add", member)
	endpoints := free[0]
	for i, addr := range r.PeerAddrs() {
		if i+1 != lost {
			endpoints += "," + addr
		}
	}
	t.Setenv("WEIR_KV_ENDPOINTS", endpoints)
	testkit.Eventually(t, "the new replica has caught up and votes", func() bool {
		return program.Call(t, "kv", "member", "replace", fmt.Sprint(lost), fmt.Sprint(id)).Code == cli.ExitFine || votes(t, id)
	})
	testkit.Eventually(t, "the new replica is ready", func() bool { return answers(admin+"/readyz") == http.StatusOK })
	testkit.Eventually(t, "the lost one is no member", func() bool {
		members := clitest.Decode[[]kvMember](t, program.Must(t, "kv", "member", "list", "--json"))
		return len(members) == 3 && !slices.ContainsFunc(members, func(m kvMember) bool { return m.ID == uint64(lost) }) &&
			slices.ContainsFunc(members, func(m kvMember) bool { return m.ID == uint64(id) && m.Voter })
	})
	whole(t)
	testkit.Eventually(t, "the new replica has what was written before", func() bool {
		return program.Call(t, "kv", "get", "without", "--weak", "--endpoints", free[0]).Stdout == "the lost one\n"
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ends(cli.ExitFine, "weir kv serve has stopped")
}

// ended reports whether a channel is closed.
func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// caughtUp reports whether a replica has on its disk all that its leader has.
func caughtUp(t *testing.T, id int) bool {
	t.Helper()
	s := clitest.Decode[struct{ Replicas []kvReplica }](t, program.Call(t, "kv", "status", "--json").Stdout)
	has := slices.IndexFunc(s.Replicas, func(r kvReplica) bool { return r.ID == uint64(id) })
	all := slices.IndexFunc(s.Replicas, func(r kvReplica) bool { return r.ID == r.Leader })
	return has >= 0 && all >= 0 && s.Replicas[has].Durable >= s.Replicas[all].Last
}

// TestKVDiskFull fills the disk of one replica, which stops and says so; the
// others go on. Once there is space it does, too.
func TestKVDiskFull(t *testing.T) {
	testkit.Long(t, "fills a log of 64 MB")
	small := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	// A segment of the log has 64 MB.
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=66m"); err != nil {
		t.Skipf("mounting a small disk needs the right to: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	r := newKVRig(t, lab.KVConfig{Each: func(number int, flags map[string]string) {
		if number == 3 {
			flags["data"] = small
		}
	}})
	value := strings.Repeat("v", 4<<20)
	full := r.node(3).Done()
	for i := 0; ; i++ {
		if code, stderr := kvPutInput(t, fmt.Sprintf("k/%d", i%5), value); code != cli.ExitFine {
			t.Fatal(stderr)
		}
		// The others do not wait for this one: the test does.
		testkit.Eventually(t, "replica 3 has what was put, or has stopped", func() bool { return ended(full) || caughtUp(t, 3) })
		if ended(full) {
			break
		}
		if i > 40 {
			t.Fatalf("%d MiB fit on a disk of 66 MB:\n%s", i*4, r.node(3).LogTail(20))
		}
	}
	r.logged(3, "no space left on device", "the disk failed", "free some space, nothing that was flushed is lost")
	program.Must(t, "kv", "put", "meanwhile", "all well")
	refuseInTime(t, cli.ExitShortfall, []string{"1 of 3 replicas do not answer"}, "kv", "status")
	if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=1g"); err != nil {
		t.Fatal(err)
	}
	r.restart(3)
	r.await()
	testkit.Eventually(t, "the replica has what was written meanwhile", func() bool {
		return program.Call(t, "kv", "get", "meanwhile", "--weak", r.alone(3)).Stdout == "all well\n"
	})
	whole(t)
}
