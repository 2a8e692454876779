package mysql

import "testing"

// An answer of which weir keeps only so much is not gathered beyond that.
func TestLongAnswersToWeirAreDropped(t *testing.T) {
	t.Parallel()
	b, u := &backend{}, &unit{kind: unitHidden, park: true, most: 10}
	for i, want := range []int{6, 0, 0} {
		if b.emit(u, make([]byte, 6)); len(u.resp) != want || u.bytes != 6*(i+1) {
			t.Errorf("after %d bytes %d are kept of %d seen, want %d", 6*(i+1), len(u.resp), u.bytes, want)
		}
	}
}
