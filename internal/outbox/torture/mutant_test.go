package torture

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// mutant is a relay with a defect that an outbox may well have. The harness must
// see it: what cannot fail shows nothing.
type mutant struct {
	name, file string
	from, to   string // replaced in the file, where it occurs once
	claim      outbox.ClaimMode
	engine     string
	// sees is what of the verdict must be wrong.
	sees func(v *Result) bool
}

func lostOrEarly(v *Result) bool { return v.Lost+v.Waiting+v.OutOfOrder > 0 }

var mutants = []mutant{
	{
		name: "a cursor that always moves on", file: "outbox/frontier.go",
		from:  "f.gaps = append(f.gaps, gap{Range{f.after + 1, seq - 1}, f.round})",
		to:    "",
		claim: outbox.Poll, engine: "postgres", sees: lostOrEarly,
	},
	{
		name: "late and new rows read in two statements", file: "outbox/lead.go",
		from: "page, err := l.lease.Read(l.work, ReadRequest{\n\t\tAfter: l.front.after, Gaps: l.front.ranges(ranges),",
		to: `late, err := l.lease.Read(l.work, ReadRequest{After: 1 << 62, Gaps: l.front.ranges(ranges), Limit: 100_000, MaxBytes: 1 << 30})
	if err != nil {
		return false, 0, err
	}
	l.accept(late.Rows)
	page, err := l.lease.Read(l.work, ReadRequest{
		After: l.front.after,`,
		claim: outbox.Poll, engine: "postgres", sees: func(v *Result) bool { return v.OutOfOrder > 0 },
	},
	{
		name: "noted as delivered before it is published", file: "outbox/flight.go",
		from:  "f.errs = f.by.publish(n.work, n.live, f.rows)\n",
		to:    "n.lead.delivered(f.rows)\n\t\tf.errs = f.by.publish(n.work, n.live, f.rows)\n",
		claim: outbox.Poll, engine: "postgres", sees: func(v *Result) bool { return v.Lost > 0 },
	},
	{
		name: "gaps buried without a proof", file: "outbox/proof.go",
		from:  "settled, err := l.lease.Settled(l.work, l.mark)",
		to:    "settled, err := true, error(nil)",
		claim: outbox.Poll, engine: "postgres", sees: lostOrEarly,
	},
	{
		name: "the log is followed without one more read", file: "outbox/tailing.go",
		from:  "for {\n\t\trows, bytes, ok := l.waitRoom(t.ended)",
		to:    "for false {\n\t\trows, bytes, ok := l.waitRoom(t.ended)",
		claim: outbox.Log, engine: "mariadb", sees: lostOrEarly,
	},
	{
		name: "a failed message holds up none of its key", file: "outbox/lane.go",
		from:  `if row.Key == "" || n.cfg.Unordered {` + "\n\t\treturn nil",
		to:    `if row.Key != "never" {` + "\n\t\treturn nil",
		claim: outbox.Poll, engine: "postgres", sees: func(v *Result) bool { return v.OutOfOrder > 0 },
	},
	{
		name: "PostgreSQL's mark sees nobody", file: "outbox/postgres/mark.go",
		from:  "m := &mark{running: h.running}",
		to:    "m := &mark{running: map[string]struct{}{}}",
		claim: outbox.Poll, engine: "postgres", sees: lostOrEarly,
	},
	{
		name: "MariaDB's mark sees no transactions", file: "outbox/mysql/proof.go",
		from:  "if limit == 0 || id < limit {",
		to:    "if limit == 0 && id < limit {",
		claim: outbox.Poll, engine: "mariadb", sees: lostOrEarly,
	},
}

// TestMutantsFollowTheSource notices at once when what mutants change is there no
// longer.
func TestMutantsFollowTheSource(t *testing.T) {
	for _, m := range mutants {
		text, err := os.ReadFile(filepath.Join("../../..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.from); n != 1 {
			t.Errorf("%s: %s has %q %d times, want once", m.name, m.file, m.from, n)
		}
	}
}

// envMutants, when it is 1, as `make torture` sets it, has mutants tried.
const envMutants = "WEIR_TORTURE_MUTANTS"

// TestMutants builds relays with defects and has the harness find them.
func TestMutants(t *testing.T) {
	if os.Getenv(envMutants) != "1" {
		t.Skip("building and running mutants takes minutes: make torture does, with " + envMutants + "=1")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			requireEngine(t, m.engine)
			worker := m.build(t)
			// A defect shows when moments meet; how soon depends on the machine.
			for range 10 {
				res := tortured(t, Config{
					Worker: []string{worker}, Engine: m.engine, Claim: m.claim, Duration: 3 * time.Second, Kills: 6,
					Patience: 5 * time.Second, Producers: 12,
				})
				if m.sees(res) && len(res.Violations) > 0 && !res.Holds() {
					t.Logf("seen: %v, such as %v", res.Violations, res.Examples[0])
					return
				}
			}
			t.Error("ten runs did not see it")
		})
	}
}

// build makes a relay process out of sources of which one file is another.
func (m *mutant) build(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(root, filepath.FromSlash(m.file))
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.from); n != 1 {
		t.Fatalf("%s has %q %d times, want once: the mutant must follow the source", m.file, m.from, n)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.from, m.to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	worker := filepath.Join(dir, "worker")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", worker, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the mutant: %v\n%s", err, out)
	}
	return worker
}
