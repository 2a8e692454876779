package wire

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var someChanges = []Change{
	{Kind: ChangePut, Key: "k", Value: []byte("v"), Revision: 7, Lease: 3},
	{Kind: ChangePut, Key: "", Revision: 8},
	{Kind: ChangeDelete, Key: "k", Revision: 9},
	{Kind: ChangeExpire, Key: "other", Revision: 1 << 40},
}

func TestChangesRoundTrip(t *testing.T) {
	for n := range len(someChanges) + 1 {
		got, err := ParseChanges(AppendChanges(nil, someChanges[:n]))
		if err != nil {
			t.Fatal(err)
		}
		want := someChanges[:n:n]
		if n == 0 {
			want = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d changes (-want +got):\n%s", n, diff)
		}
	}
}

func TestChangesCutShort(t *testing.T) {
	one := AppendChanges(nil, someChanges[:1])
	for n := 1; n < len(one); n++ {
		if got, err := ParseChanges(one[:n]); err == nil {
			t.Errorf("the first %d of %d bytes: %v, want an error", n, len(one), got)
		}
	}
}

func FuzzParseChanges(f *testing.F) {
	f.Add(AppendChanges(nil, someChanges))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, b []byte) {
		changes, err := ParseChanges(b)
		if err != nil {
			return
		}
		if again := AppendChanges(nil, changes); !bytes.Equal(again, b) {
			t.Errorf("%q decodes and encodes as %q", b, again)
		}
	})
}
