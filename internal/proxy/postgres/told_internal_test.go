package postgres

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A server that says more types of parameters than it sends, or fewer, loses its connection.
func TestParametersThatAreCutOff(t *testing.T) {
	li := newLiar(t)
	for _, body := range []string{"", "\x00", "\x00\x02\x00\x00\x00\x14", "\x00\x00\x00\x00\x00\x14"} {
		li.call(func() {
			st := li.new(true)
			defer st.end()
			u := li.l.newUnit(unitHidden)
			st.b.described(u, expect{code: expHiddenDescribe}, pgwire.ServerParameterDescription, []byte(body))
			li.l.Settle()
			if st.closed == nil || !strings.Contains(st.closed.Error(), "ParameterDescription") {
				t.Errorf("%q: %v", body, st.closed)
			}
		})
	}
}
