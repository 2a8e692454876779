package killtest_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// An outcome is what a client was told of its write.
type outcome byte

const (
	open    outcome = iota // nothing yet
	acked                  // it is done
	refused                // it is not done: an error, a rollback, no COMMIT was sent
	unknown                // the connection was lost, or an error that says just that
)

// Parts of which a write can consist. All of its parts are in the database, each
// once, or none.
const (
	partRow   = 1 << iota // a row of the table that accepts doubles
	partTwin              // a second one beside it
	partKeyed             // a row of the table with a primary key
	partEntry             // an entry appended to a slot by an UPDATE
	partSlot              // the row of a slot
)

// A record is one part of a write as the database has it.
type record struct {
	id, part int64
	body     string
}

// content is what the body of a part must be. Lengths differ.
func content(id, part int64) string {
	return fmt.Sprintf("%d/%d '%s", id, part, strings.Repeat("\\x", int(id%23)))
}

// A ledger has what clients were told of their writes. The zero value is empty.
// It is safe for concurrent use.
type ledger struct {
	mu         sync.Mutex
	parts      []byte // of write id, at id-1
	outcomes   []outcome
	complaints []string
}

// begin notes a write and returns its id, which is unique.
func (l *ledger) begin(parts byte) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts, l.outcomes = append(l.parts, parts), append(l.outcomes, open)
	return int64(len(l.parts))
}

func (l *ledger) end(id int64, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[id-1] = o
}

// complain notes what a client saw and must not have seen.
func (l *ledger) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complaints = append(l.complaints, fmt.Sprintf(format, args...))
}

// A verdict compares what clients were told with what is in the database.
type verdict struct {
	acked, refused, unknown int
	happened                int // of the unknown ones, those that are there

	lost    int // acknowledged and not there
	doubled int // a part is there more than once
	halves  int // some parts are there, others are not
	ghosts  int // refused, and there
	wrong   int // there with other contents, or never written
	seen    int // what clients have complained of

	examples []string
}

// breaches is how many promises were broken.
func (v *verdict) breaches() int {
	return v.lost + v.doubled + v.halves + v.ghosts + v.wrong + v.seen
}

func (v *verdict) String() string {
	return fmt.Sprintf("%d acknowledged, %d refused, %d unknown (%d happened); %d lost, %d doubled, %d halves, %d ghosts, %d wrong, %d complaints",
		v.acked, v.refused, v.unknown, v.happened, v.lost, v.doubled, v.halves, v.ghosts, v.wrong, v.seen)
}

func (v *verdict) say(n *int, format string, args ...any) {
	*n++
	if len(v.examples) < 20 {
		v.examples = append(v.examples, fmt.Sprintf(format, args...))
	}
}

func (v *verdict) add(o *verdict) {
	v.acked, v.refused, v.unknown, v.happened = v.acked+o.acked, v.refused+o.refused, v.unknown+o.unknown, v.happened+o.happened
	v.lost, v.doubled, v.halves, v.ghosts, v.wrong, v.seen = v.lost+o.lost, v.doubled+o.doubled, v.halves+o.halves, v.ghosts+o.ghosts, v.wrong+o.wrong, v.seen+o.seen
}

// verdict judges found, the whole contents of the database, when no client writes any more.
func (l *ledger) verdict(found []record) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := verdict{seen: len(l.complaints), examples: slices.Clone(l.complaints)}
	have := make([]byte, len(l.parts))
	for _, r := range found {
		if r.id < 1 || r.id > int64(len(l.parts)) || int64(l.parts[r.id-1])&r.part != r.part {
			v.say(&v.wrong, "write %d part %d was never sent", r.id, r.part)
			continue
		}
		if r.body != content(r.id, r.part) {
			v.say(&v.wrong, "write %d part %d is %q, want %q", r.id, r.part, r.body, content(r.id, r.part))
		}
		if int64(have[r.id-1])&r.part != 0 {
			v.say(&v.doubled, "write %d part %d is there more than once", r.id, r.part)
		}
		have[r.id-1] |= byte(r.part)
	}
	for i, o := range l.outcomes {
		id, there := i+1, have[i] != 0
		if there && have[i] != l.parts[i] {
			v.say(&v.halves, "write %d has parts %b of %b", id, have[i], l.parts[i])
		}
		switch o {
		case acked:
			v.acked++
			if !there {
				v.say(&v.lost, "write %d with parts %b was acknowledged and is lost", id, l.parts[i])
			}
		case refused:
			v.refused++
			if there {
				v.say(&v.ghosts, "write %d with parts %b was refused and is there", id, l.parts[i])
			}
		default:
			v.unknown++
			if there {
				v.happened++
			}
		}
	}
	return v
}

// TestVerdict plants each kind of breach: a check that cannot fail proves nothing.
func TestVerdict(t *testing.T) {
	single := func(id int64) record { return record{id, partRow, content(id, partRow)} }
	twin := record{5, partTwin, content(5, partTwin)}
	whole := []record{single(1), single(5), twin} // 1 and 5 were acknowledged, 2 refused, 3 and 4 unknown
	for _, tt := range []struct {
		name  string
		found []record
		want  func(*verdict) int // what is 1
	}{
		{"nothing", whole, nil},
		{"an unknown write happened", append(slices.Clone(whole), single(3)), func(v *verdict) int { return v.happened }},
		{"a loss", whole[1:], func(v *verdict) int { return v.lost }},
		{"a loss of all parts", whole[:1], func(v *verdict) int { return v.lost }},
		{"a doubling", append(slices.Clone(whole), single(1)), func(v *verdict) int { return v.doubled }},
		{"an unknown write doubled", append(slices.Clone(whole), single(3), single(3)), func(v *verdict) int { return v.doubled }},
		{"half a transaction", whole[:2], func(v *verdict) int { return v.halves }},
		{"the other half", []record{whole[0], twin}, func(v *verdict) int { return v.halves }},
		{"a refused write", append(slices.Clone(whole), single(2)), func(v *verdict) int { return v.ghosts }},
		{"another's contents", []record{{1, partRow, content(3, partRow)}, single(5), twin}, func(v *verdict) int { return v.wrong }},
		{"an id that nobody wrote", append(slices.Clone(whole), single(6)), func(v *verdict) int { return v.wrong }},
		{"a part that nobody wrote", append(slices.Clone(whole), record{1, partTwin, content(1, partTwin)}), func(v *verdict) int { return v.wrong }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var l ledger
			for _, o := range []outcome{acked, refused, unknown, open} {
				l.end(l.begin(partRow), o)
			}
			l.end(l.begin(partRow|partTwin), acked)
			v := l.verdict(tt.found)
			if v.acked != 2 || v.refused != 1 || v.unknown != 2 {
				t.Errorf("counted %s", &v)
			}
			innocent := tt.want == nil || v.happened > 0 && v.breaches() == 0
			if tt.want != nil && tt.want(&v) != 1 {
				t.Errorf("found %s", &v)
			}
			if got := v.breaches(); innocent && got != 0 || !innocent && (got != 1 || len(v.examples) != 1) {
				t.Errorf("%d breaches: %s; %q", got, &v, v.examples)
			}
		})
	}
	t.Run("a complaint", func(t *testing.T) {
		var l ledger
		l.complain("write %d cannot be read", 1)
		if v := l.verdict(nil); v.breaches() != 1 || v.examples[0] != "write 1 cannot be read" {
			t.Errorf("%s, %q", &v, v.examples)
		}
	})
	t.Run("entries", func(t *testing.T) {
		found, bad := entries(7, "9,12,12,11,")
		if len(found) != 4 || found[1] != (record{12, partEntry, content(12, partEntry)}) || len(bad) != 2 {
			t.Errorf("%v, %q", found, bad)
		}
		if _, bad := entries(-1, "9,8,"); len(bad) != 0 {
			t.Errorf("entries of a slot that many share have no order: %q", bad)
		}
	})
}
