package lexicon

import (
	"hash/fnv"
	"strings"
	"testing"
)

func TestTableFindsItsWords(t *testing.T) {
	words := strings.Fields("a b select insert_id current_timestamp x1 $ z_ über " + strings.Join(many(300), " "))
	table := NewTable(words)
	if table.Len() != len(words) {
		t.Fatalf("%d words, want %d", table.Len(), len(words))
	}
	for i, w := range words {
		if got := table.Find(w, Hash(w), false); got != i || table.Word(i) != w {
			t.Errorf("%s: index %d, want %d", w, got, i)
		}
		upper := strings.Map(func(r rune) rune {
			if 'a' <= r && r <= 'z' {
				return r - 'a' + 'A'
			}
			return r
		}, w)
		if got := table.Find(upper, Hash(upper), true); got != i {
			t.Errorf("%s: index %d, want %d", upper, got, i)
		}
		if upper != w && table.Find(upper, Hash(upper), false) >= 0 {
			t.Errorf("%s found without folding", upper)
		}
		if longer := w + "_not_there"; table.Find(longer, Hash(longer), true) >= 0 {
			t.Errorf("%s found", longer)
		}
	}
}

// many returns n words that differ.
func many(n int) []string {
	words := make([]string, n)
	for i := range words {
		words[i] = "w" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26)
	}
	return words
}

func TestLower(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", "ABC": "abc", "aÜB_9": "aÜb_9", "x@[Z": "x@[z"} {
		if got := Lower(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() { Lower("nothing_to_do") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNormalHashesWhatItWouldWrite(t *testing.T) {
	text, hash := TextUpTo(100, 4), HashOnly()
	for _, n := range []*Normal{&text, &hash} {
		if !n.Empty() {
			t.Error("not empty")
		}
		n.WriteFolded("SELECT")
		n.Write(" \"X\"")
	}
	const want = `select "X"`
	if text.String() != want {
		t.Errorf("%q", text.String())
	}
	h := fnv.New64a()
	h.Write([]byte(want))
	if hash.Sum() != h.Sum64() {
		t.Errorf("%x, want %x", hash.Sum(), h.Sum64())
	}
}

func TestNormalCutsBetweenCharacters(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"abc", 2, "ab"}, {"abc", 3, "abc"}, {"aé", 2, "a"}, {"aé", 3, "aé"}, {"a\xffb", 9, "a?b"}, {"\x80\x80\x80\x80\x80\x80", 5, "?"},
	} {
		n := TextUpTo(c.max, 8)
		n.Write(c.in)
		if got := n.String(); got != c.want {
			t.Errorf("%q up to %d: %q, want %q", c.in, c.max, got, c.want)
		}
		if n.Full() != (len(c.in) >= c.max) {
			t.Errorf("%q up to %d: full %t", c.in, c.max, n.Full())
		}
	}
}
