package mysql

import (
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// Facts of a table outlive a question that is lost with its connection, and a table without
// known facts is not taken for plain.
func TestFactsOfATableOutliveALostQuestion(t *testing.T) {
	lost := &unit{err: &mywire.Error{}, failed: true}
	for state, want := range map[tableState]tableState{tablePlain: tablePlain, tableUnknown: tableOther, tableOther: tableOther} {
		f := tableFacts{state: state, at: time.Second, asking: true}
		f.learn(&pool{l: &loop{}}, lost)
		if f.state != want || f.asking || (f.at == time.Second) != (want == tablePlain) {
			t.Errorf("from %d: %+v, want state %d", state, f, want)
		}
	}
}
