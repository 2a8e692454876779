package mysql

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// While a client waits, no more of its next message is gathered than of any other: the
// limit of one message is looked at when its turn has come.
func TestNothingIsGatheredForWhoWaits(t *testing.T) {
	t.Parallel()
	long := append(mywire.AppendHeader(nil, 1<<20, 0), mywire.ComQuery)
	for state := stateOpen; state <= stateLeavingAsking; state++ {
		c := &client{s: &netloop.Sock{In: long}, state: state}
		if got, want := c.WantsMore(), state == stateOpen || state == stateSending; got != want {
			t.Errorf("state %d: wants more: %v, want %v", state, got, want)
		}
	}
}

// However a text asks for the last id, and wherever it is cut into parts.
func TestTextsThatAskForTheLastID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"SELECT Last_Insert_ID()":             true,
		"SELECT `last_insert_id`()":           true,
		"SELECT @@identity":                   true,
		"SELECT @@`IDENTITY`":                 true,
		"SELECT @@SESSION.last_insert_id":     true,
		"SELECT @@session.`last_insert_id`":   true,
		"SELECT @@session . `identity`":       true,
		"SELECT @@`local`\n.\"identity\"":     true,
		"SELECT identity, @@session.sql_mode": false,
		"SELECT last_id, insert_id()":         false,
		"SELECT session.identity":             false, // a column
	} {
		for cut := range len(text) {
			a := asksID{on: true}
			if got := a.in([]byte(text[:cut])) || a.in([]byte(text[cut:])); got != want {
				t.Errorf("%q and %q: %v", text[:cut], text[cut:], got)
			}
		}
		a, asked := asksID{on: true}, false
		for i := range len(text) {
			asked = a.in([]byte{text[i]}) || asked
		}
		if asked != want {
			t.Errorf("%q byte by byte: %v", text, asked)
		}
	}
}
