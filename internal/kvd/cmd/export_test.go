package kvcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/kvd/dump"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// at are the flags that name a cluster.
func (r *kvRig) at() string { return "--endpoints=" + strings.Join(r.PeerAddrs(), ",") }

// second starts another cluster beside the rig's.
func (r *kvRig) second() *kvRig {
	return &kvRig{KV: labtest.KV(r.t, lab.KVConfig{Program: program.Path(r.t)}), t: r.t}
}

// client is connected to the rig's cluster.
func (r *kvRig) client() (context.Context, *kv.Client) {
	r.t.Helper()
	ctx, cancel := r.within()
	c, err := kv.Open(ctx, r.PeerAddrs(), kv.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		cancel()
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return ctx, c
}

// fill writes many keys at once.
func fill(ctx context.Context, t *testing.T, c *kv.Client, n int, value func(i int) []byte) {
	t.Helper()
	errs := make(chan error, n)
	for i := range n {
		for {
			err := c.Issue(kv.Put(fmt.Sprintf("many/%06d", i), value(i)), func(_ kv.Result, err error) { errs <- err })
			if err == nil {
				break
			}
			if err = c.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// count counts the keys of a cluster.
func (r *kvRig) count() int {
	r.t.Helper()
	ctx, c := r.client()
	items, more, err := c.Range(ctx, "", "", kv.KeysOnly())
	if err != nil || more {
		r.t.Fatal(more, err)
	}
	return len(items)
}

// manyKeys are more than export and import read at once.
const manyKeys = 2100

// TestKVExportImport moves keys of all kinds from one cluster into another.
func TestKVExportImport(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{})
	to := r.second()
	ctx, c := r.client()
	program.Must(t, "kv", "put", "plain", "x")
	for key, value := range map[string]string{"\xff\x00": "binary key", "binary": "\xff\x00\n", "": "empty key", "empty": ""} {
		if _, err := c.Put(ctx, key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	// More than import has on its way at a time; dump's own tests have longer ones.
	if _, err := c.Put(ctx, "large", []byte(strings.Repeat("\x01é", 1<<17))); err != nil {
		t.Fatal(err)
	}
	lease, err := c.Grant(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "held", []byte("by a lease"), kv.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "hour", []byte("timed"), kv.TTL(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "brief", []byte("timed"), kv.TTL(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	fill(ctx, t, c, manyKeys, func(i int) []byte { return fmt.Append(nil, i) })

	file := filepath.Join(t.TempDir(), "backup.kv")
	sum := clitest.Decode[dump.Summary](t, program.Must(t, "kv", "export", "--json", file))
	if sum.Keys < manyKeys+8 || sum.Leased != 1 || sum.Timed < 1 || sum.Digest == "" {
		t.Errorf("exported: %+v", sum)
	}
	program.Refuse(t, cli.ExitFailed, []string{"exists", "another name"}, "kv", "export", file)
	if out := program.Call(t, "kv", "export", "--weak"); out.Code != cli.ExitFine || strings.Count(out.Stdout, "\n") < manyKeys+9 || !strings.Contains(out.Stderr, "2") {
		t.Errorf("export to standard output: code %d, %s", out.Code, out.Stderr)
	}

	report := clitest.Decode[dump.Report](t, program.Must(t, "kv", "import", to.at(), "--json", file))
	if report.Written != sum.Keys-1 || report.Skipped != 1 || report.ClusterHas != sum.Digest {
		t.Errorf("imported: %+v\nexported: %+v", report, sum)
	}
	for key, want := range map[string]string{"plain": "x\n", "\xff\x00": "binary key\n", "binary": "\xff\x00\n\n", "": "empty key\n", "empty": "\n", "hour": "timed\n", fmt.Sprintf("many/%06d", manyKeys-1): fmt.Sprintln(manyKeys - 1)} {
		if out := program.Must(t, "kv", "get", to.at(), "--", key); out != want {
			t.Errorf("%q is %q in the second cluster, want %q", key, out, want)
		}
	}
	program.Refuse(t, cli.ExitFailed, []string{"not found"}, "kv", "get", to.at(), "held")
	toCtx, toClient := to.client()
	testkit.Eventually(t, "a key with a time to live goes", func() bool {
		_, err := toClient.Get(toCtx, "brief")
		return err != nil
	})
	if items, _, err := toClient.Inventory(toCtx, "hour", "hour\x00"); err != nil || len(items) != 1 || items[0].TTL <= 0 || items[0].TTL > time.Hour {
		t.Errorf("the time to live of hour: %+v, %v", items, err)
	}

	// Again: only what has gone by itself is written.
	report = clitest.Decode[dump.Report](t, program.Must(t, "kv", "import", to.at(), "--json", file))
	if report.Written > 1 || report.Same < manyKeys {
		t.Errorf("imported again: %+v", report)
	}
	// Something else is there.
	program.Must(t, "kv", "put", to.at(), "other", "stays")
	program.Must(t, "kv", "put", to.at(), "plain", "y")
	program.Refuse(t, cli.ExitFailed, []string{"1 keys that the dump does not have, and 1 with other values or times to live", `"other"`, "nothing was written", "--overwrite"}, "kv", "import", to.at(), file)
	if out := program.Must(t, "kv", "get", to.at(), "plain"); out != "y\n" {
		t.Errorf("a refused import has written %q", out)
	}
	out := program.Must(t, "kv", "import", to.at(), "--overwrite", "--keep-leased", file)
	if !holdsAll(out, "1 other keys of the cluster stayed", "verified", "have a time to live") {
		t.Errorf("import --overwrite: %s", out)
	}
	for key, want := range map[string]string{"plain": "x\n", "other": "stays\n", "held": "by a lease\n"} {
		if out := program.Must(t, "kv", "get", to.at(), key); out != want {
			t.Errorf("%q is %q after --overwrite, want %q", key, out, want)
		}
	}

	// The output of weir kv range is accepted, too.
	list := filepath.Join(t.TempDir(), "list.json")
	clitest.Write(t, list, program.Must(t, "kv", "range", "--limit", "0", "--json"))
	if res := program.Call(t, "kv", "import", to.at(), "--overwrite", list); res.Code != cli.ExitFine || !strings.Contains(res.Stderr, "all of its keys stay") {
		t.Errorf("import of a list: %s", res)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	clitest.Write(t, list, string(text[:len(text)/2]))
	program.Refuse(t, cli.ExitShortfall, []string{"cut short", "nothing was written"}, "kv", "import", to.at(), "--overwrite", list)
}

// A dump that goes bad after it was checked: some of it may be written.
func TestDamageDuringAnImport(t *testing.T) {
	err := ofDump("backup.kv", fmt.Errorf("after 3 keys of this run: %w", &dump.DamagedError{Line: 5, Why: "nonsense"}))
	if got := err.Error(); got != "backup.kv: after 3 keys of this run: line 5: nonsense" || cli.ExitCode(err) != cli.ExitShortfall {
		t.Errorf("exit code %d: %s", cli.ExitCode(err), got)
	}
}

// TestKVImportGoesOn kills an import in its middle, and a leader in the middle of the
// next one.
func TestKVImportGoesOn(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{})
	to := r.second()
	ctx, c := r.client()
	const keys = 6_000
	fill(ctx, t, c, keys, func(i int) []byte { return []byte(strings.Repeat(fmt.Sprint(i), 20)) })
	file := filepath.Join(t.TempDir(), "backup.kv")
	sum := clitest.Decode[dump.Summary](t, program.Must(t, "kv", "export", "--json", file))
	if sum.Keys != keys {
		t.Fatalf("exported: %+v", sum)
	}
	toCtx, toClient := to.client()
	begun := func(p *strayKV, keys int) { // which it writes in order
		testkit.Eventually(t, fmt.Sprintf("the import has written %d keys", keys), func() bool {
			select {
			case <-p.done:
				t.Fatalf("the import has ended before it could be disturbed:\n%s", &p.out)
			default:
			}
			_, err := toClient.Get(toCtx, fmt.Sprintf("many/%06d", keys-1))
			return err == nil
		})
	}

	first := strayed(t, "kv", "import", to.at(), file)
	begun(first, 600)
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.done
	there := to.count()
	if there < 500 || there >= keys {
		t.Fatalf("%d of %d keys are there after an import was killed", there, keys)
	}

	second := strayed(t, "kv", "import", to.at(), "--timeout="+labtest.Patience.String(), "--json", file)
	begun(second, there+500)
	lead := to.leader(1, 2, 3)
	to.node(lead).Kill()
	second.ends(cli.ExitFine)
	report := clitest.Decode[dump.Report](t, second.out.String())
	if report.Same < there-100 || report.Written+report.Same != keys || report.ClusterHas != sum.Digest {
		t.Errorf("the import that went on: %+v; %d keys were there; exported: %+v", report, there, sum)
	}
	to.restart(lead)
	to.await()
	after := clitest.Decode[dump.Summary](t, program.Must(t, "kv", "export", to.at(), "--json", filepath.Join(t.TempDir(), "after.kv")))
	if after.Digest != sum.Digest || after.Keys != keys {
		t.Errorf("the second cluster holds %+v, the first %+v", after, sum)
	}
}

// A key without a time to live must not expire because the cluster has one for it, or a lease,
// and the same value, and vice versa.
func TestKVImportComparesTimes(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{Replicas: 1, Durability: lab.Fast})
	ctx, c := r.client()
	put := func(key string, options ...kv.Option) {
		t.Helper()
		if _, err := c.Put(ctx, key, []byte("same"), options...); err != nil {
			t.Fatal(err)
		}
	}
	put("held")
	put("hour", kv.TTL(time.Hour))
	put("stays")
	file := filepath.Join(t.TempDir(), "backup.kv")
	program.Must(t, "kv", "export", file)
	lease, err := c.Grant(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	put("held", kv.WithLease(lease))
	put("hour")
	put("stays", kv.TTL(time.Hour))
	program.Refuse(t, cli.ExitFailed, []string{"3 with other values or times to live"}, "kv", "import", file)
	if report := clitest.Decode[dump.Report](t, program.Must(t, "kv", "import", "--overwrite", "--json", file)); report.Written != 3 {
		t.Errorf("import: %+v, want 3 keys written", report)
	}
	items, _, err := c.Inventory(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		if x := &items[i]; x.Lease != 0 || (x.TTL != 0) != (x.Key == "hour") {
			t.Errorf("%s has a time to live of %v and lease %d", x.Key, x.TTL, x.Lease)
		}
	}
	if report := clitest.Decode[dump.Report](t, program.Must(t, "kv", "import", "--json", file)); report.Same != 3 {
		t.Errorf("import again: %+v, want 3 keys the same", report)
	}
}

// TestKVDisaster follows docs/kv-operating.md where the disks of a majority are lost, at
// once after a write was answered: no survivor knows yet that its entry is committed.
func TestKVDisaster(t *testing.T) {
	r := newKVRig(t, lab.KVConfig{})
	ctx, c := r.client()
	fill(ctx, t, c, 500, func(i int) []byte { return fmt.Append(nil, i) })
	lease, err := c.Grant(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "held", []byte("v"), kv.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "timed", []byte("v"), kv.TTL(time.Hour)); err != nil {
		t.Fatal(err)
	}
	lead := r.leader(1, 2, 3) // it has all that was answered
	for id := range r.Nodes() {
		r.node(id + 1).Kill()
	}
	rescued := filepath.Join(t.TempDir(), "rescued")
	if err := os.CopyFS(rescued, os.DirFS(r.node(lead).DataDir())); err != nil {
		t.Fatal(err)
	}
	if out := program.Must(t, "kv", "verify", rescued); !strings.Contains(out, "log up to entry") {
		t.Errorf("verify: %s", out)
	}
	file := filepath.Join(t.TempDir(), "rescued.kv")
	sum := clitest.Decode[dump.Summary](t, program.Must(t, "kv", "export", "--data", rescued, "--json", file))
	if sum.Keys != 502 || sum.Leased != 1 || sum.Timed != 1 {
		t.Errorf("rescued: %+v", sum)
	}
	program.Refuse(t, cli.ExitFailed, []string{"take another replica's"}, "kv", "export", "--data", t.TempDir(), file+"2")
	to := r.second()
	report := clitest.Decode[dump.Report](t, program.Must(t, "kv", "import", to.at(), "--json", file))
	if report.Written != 501 || report.Skipped != 1 || report.ClusterHas != sum.Digest {
		t.Errorf("imported: %+v", report)
	}
	if out := program.Must(t, "kv", "get", to.at(), "many/000499"); out != "499\n" {
		t.Errorf("the last key is %q", out)
	}
}
