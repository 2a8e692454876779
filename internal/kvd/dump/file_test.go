package dump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/kv"
)

// sample has what may go wrong on its way through text.
func sample() []kv.Item {
	return []kv.Item{
		{Key: "", Value: []byte("of the empty key"), Revision: 3},
		{Key: "\x00\xff", Value: []byte{0, 0xff, '\n'}, Revision: 4},
		{Key: "\n\"\u2028<&>", Value: nil, Revision: 5},
		{Key: "end", Value: []byte("\ufffd{\"end\":true}"), Revision: 1 << 60},
		{Key: "lease", Value: []byte("held"), Revision: 7, Lease: 6},
		{Key: "long", Value: bytes.Repeat([]byte("\x01\xc3"), 1<<20), Revision: 8},
		{Key: "timed", Value: []byte("v"), Revision: 9, TTL: 1500 * time.Millisecond},
		{Key: "\xff", Value: []byte("last"), Revision: 10},
	}
}

func written(t *testing.T, items []kv.Item) ([]byte, Summary) {
	t.Helper()
	slices.SortFunc(items, func(a, b kv.Item) int { return strings.Compare(a.Key, b.Key) })
	var b bytes.Buffer
	w, err := NewWriter(&b, Head{Cluster: "weir", Time: time.Unix(1, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		if err := w.Add(&items[i]); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), sum
}

func TestDumpRoundTrip(t *testing.T) {
	items := sample()
	dump, sum := written(t, items)
	r, err := NewReader(bytes.NewReader(dump))
	if err != nil {
		t.Fatal(err)
	}
	var got []kv.Item
	for {
		i, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(i.Value) == 0 {
			i.Value = nil
		}
		got = append(got, *i)
	}
	if !reflect.DeepEqual(items, got) { // of which cmp alone would look at each byte for itself
		t.Errorf("written (-) and read (+):\n%s", cmp.Diff(items, got))
	}
	again, err := Check(bytes.NewReader(dump))
	if err != nil || again != sum || sum.Keys != len(items) || sum.Timed != 1 || sum.Leased != 1 || sum.Ageless {
		t.Errorf("checked: %+v, %v; written: %+v", again, err, sum)
	}
	if r.Head.Cluster != "weir" || r.Head.Version != Version {
		t.Errorf("head %+v", r.Head)
	}
}

// The digest is of what stays, wherever it was read.
func TestDigestIsOfKeysThatStay(t *testing.T) {
	items := sample()
	_, whole := written(t, items)
	_, less := written(t, slices.DeleteFunc(slices.Clone(items), func(i kv.Item) bool { return !permanent(&i) }))
	if whole.Digest != less.Digest {
		t.Error("keys that go by themselves are in the digest")
	}
	items[0].Value = []byte("something else")
	if _, other := written(t, items); other.Digest == whole.Digest {
		t.Error("another value has the same digest")
	}
}

// A dump that was cut short or altered anywhere is refused.
func TestDamagedDumps(t *testing.T) {
	dump, _ := written(t, slices.DeleteFunc(sample(), func(i kv.Item) bool { return i.Key == "long" }))
	for n := range len(dump) {
		if _, err := Check(bytes.NewReader(dump[:n])); err == nil {
			t.Fatalf("cut after %d of %d bytes, it is taken", n, len(dump))
		}
		bad := bytes.Clone(dump)
		bad[n] ^= 0x20 // of a letter: its case
		if _, err := Check(bytes.NewReader(bad)); err == nil {
			t.Fatalf("with byte %d changed from %q to %q it is taken", n, dump[n], bad[n])
		}
	}
	if _, err := Check(bytes.NewReader(append(bytes.Clone(dump), '\n'))); err == nil {
		t.Error("with something behind its end it is taken")
	}
}

func TestWordsOfDamage(t *testing.T) {
	lines := func(all ...string) string { return strings.Join(all, "\n") + "\n" }
	const head, end = `{"weir_kv_export":1,"time":"2026-01-01T00:00:00Z"}`, `{"end":true,"sha256":"0"}`
	for text, words := range map[string]string{
		"":                            noDump,
		"key\tvalue\n":                noDump,
		`{"items":7}`:                 noDump,
		lines(head):                   "cut short",
		lines(head, end):              "damaged",
		lines(head, `{}`):             "an item with a key",
		lines(head, `{"k":1}`):        "unknown field",
		lines(head, "nonsense"):       "line 2: ",
		lines(`{"weir_kv_export":2}`): "version 2",
		lines(head, `{"key":"b"}`, `{"key":"a"}`):               `"a" comes after "b"`,
		`{"items":[{"key":"a"}],"more":true}`:                   "--limit none",
		`{"items":[{"key":"a"}],"more":false,"keys_only":true}`: "--keys-only",
		`{"items":[{"key":"a"}],"more":false}{}`:                "follows",
		`{"items":[{"key":"a"}],`:                               "cut short",
		`{"items":[{"key":"a"},{"key":"a"}],"more":false}`:      `"a" comes after "a"`,
		`{"items":[{"value":"a"}],"more":false}`:                "an item with a key",
	} {
		_, err := Check(strings.NewReader(text))
		var damaged *DamagedError
		if !errors.As(err, &damaged) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %q", text, err, words)
		}
	}
}

// The output of weir kv range is read, too.
func TestListOfRange(t *testing.T) {
	sum, err := Check(strings.NewReader(`{
  "items": [
    {"key": "a", "value": "1", "revision": 3},
    {"key": "b", "revision": 4},
    {"key": "\ufffd", "key_base64": "/w==", "value_base64": "AP8=", "revision": 5}
  ],
  "more": false
}`))
	if err != nil || sum.Keys != 3 || !sum.Ageless || sum.Bytes != 3+1+2 {
		t.Fatalf("%+v, %v", sum, err)
	}
	_, want := written(t, []kv.Item{{Key: "a", Value: []byte("1")}, {Key: "b"}, {Key: "\xff", Value: []byte{0, 0xff}}})
	if sum.Digest != want.Digest {
		t.Error("its digest is not that of the same keys in a dump")
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(`{"items":[{"key":"a","value":"1"}],"more":false}`))
	f.Add([]byte(fmt.Sprintf("%s\n%s\n", `{"weir_kv_export":1}`, `{"end":true}`)))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Check(bytes.NewReader(b)) }) // it must not panic
}
