package resp

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// feed gives a parser chunks of bytes and returns all commands that they hold.
func feed(trust bool, chunks ...[]byte) (commands [][]string, err error) {
	p := newParser()
	p.loggedIn = trust
	for _, chunk := range chunks {
		for len(chunk) > 0 {
			n := copy(p.room(), chunk)
			p.wrote(n)
			chunk = chunk[n:]
			for {
				args, _, err := p.next()
				if err != nil {
					return commands, err
				}
				if args == nil {
					break
				}
				var command []string
				for _, a := range args {
					command = append(command, string(a))
				}
				commands = append(commands, command)
			}
		}
	}
	return commands, nil
}

const stream = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n1\r\n2\r\n" +
	"PING\r\n" +
	"*0\r\n" +
	"\r\n" +
	"  set \"a b\"  'c d'\n" +
	"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n" +
	"*-1\r\n" +
	"*1\r\n$4\r\nQUIT\r\n"

var streamCommands = [][]string{{"SET", "a", "1\r\n2"}, {"PING"}, {"set", "a b", "c d"}, {"ECHO", ""}, {"QUIT"}}

// TestParserSplitAnywhere cuts a stream of commands in two and in three at every
// byte: what comes out is the same.
func TestParserSplitAnywhere(t *testing.T) {
	for i := range len(stream) {
		for j := i; j < len(stream); j++ {
			got, err := feed(true, []byte(stream[:i]), []byte(stream[i:j]), []byte(stream[j:]))
			if err != nil || !slices.EqualFunc(got, streamCommands, slices.Equal) {
				t.Fatalf("cut at %d and %d: %q, %v", i, j, got, err)
			}
		}
	}
}

func TestParserByteByByte(t *testing.T) {
	var chunks [][]byte
	for i := range len(stream) {
		chunks = append(chunks, []byte{stream[i]})
	}
	got, err := feed(true, chunks...)
	if err != nil || !slices.EqualFunc(got, streamCommands, slices.Equal) {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestParserErrors(t *testing.T) {
	long := strings.Repeat("x", maxInline+10)
	for _, test := range []struct {
		input, want string
		green       bool
	}{
		{input: "*x\r\n", want: "invalid multibulk length"},
		{input: "*\r\n", want: "invalid multibulk length"},
		{input: "*99999999999999999999\r\n", want: "invalid multibulk length"},
		{input: fmt.Sprintf("*%d\r\n", maxArgs+1), want: "invalid multibulk length"},
		{input: "*1\r\n:1\r\n", want: "expected '$', got ':'"},
		{input: "*1\r\n\r\n", want: "expected '$', got '\r'"},
		{input: "*1\r\n$x\r\n", want: "invalid bulk length"},
		{input: "*1\r\n$-1\r\n", want: "invalid bulk length"},
		{input: fmt.Sprintf("*1\r\n$%d\r\n", redisBulk+1), want: "invalid bulk length"},
		{input: "*1\r\n$1\r\nabc", want: "bulk does not end where its length says"},
		{input: "*" + long, want: "too big mbulk count string"},
		{input: "*1\r\n$" + long, want: "too big bulk count string"},
		{input: long, want: "too big inline request"},
		{input: long + "\r\n", want: "too big inline request"},
		{input: "SET \"a\r\n", want: "unbalanced quotes in request"},
		{input: "SET \"a\"b\r\n", want: "unbalanced quotes in request"},
		{input: "*11\r\n", green: true, want: "unauthenticated multibulk length"},
		{input: "*1\r\n$16385\r\n", green: true, want: "unauthenticated bulk length"},
		{input: "*1\r\n$16384\r\n", green: true},
		{input: "*10\r\n", green: true},
		{input: fmt.Sprintf("*%d\r\n$%d\r\n", maxArgs, maxBulk)},
	} {
		_, err := feed(!test.green, []byte(test.input))
		want := ""
		if test.want != "" {
			want = "Protocol error: " + test.want
		}
		if got := fmt.Sprint(err); err != nil && got != want || err == nil && want != "" {
			t.Errorf("%.60q: %v, not %q", test.input, err, want)
		}
	}
}

// TestParserRequestLimit sends bulks of the largest size until a command is too
// large: the last one is refused by its header, before it arrives.
func TestParserRequestLimit(t *testing.T) {
	p := newParser()
	p.loggedIn = true
	give := func(b []byte) error {
		for len(b) > 0 {
			n := copy(p.room(), b)
			p.wrote(n)
			b = b[n:]
			if _, _, err := p.next(); err != nil {
				return err
			}
		}
		return nil
	}
	bulk := fmt.Appendf(nil, "$%d\r\n%s\r\n", maxBulk, make([]byte, maxBulk))
	if err := give([]byte("*4\r\n$3\r\nSET\r\n")); err != nil {
		t.Fatal(err)
	}
	for range maxRequest / maxBulk {
		if err := give(bulk); err != nil {
			t.Fatal(err)
		}
	}
	err := give(fmt.Appendf(nil, "$%d\r\n", maxBulk))
	if fmt.Sprint(err) != "Protocol error: command is too large" {
		t.Fatal(err)
	}
	if cap(p.buf) > 4*maxRequest {
		t.Fatalf("the buffer has grown to %d bytes", cap(p.buf))
	}
}

// TestParserMemoryFollowsArrival announces much and sends little.
func TestParserMemoryFollowsArrival(t *testing.T) {
	p := newParser()
	p.loggedIn = true
	p.wrote(copy(p.room(), fmt.Sprintf("*%d\r\n$%d\r\n", maxArgs, maxBulk)))
	if _, _, err := p.next(); err != nil {
		t.Fatal(err)
	}
	if n := len(p.room()); n > 4*readSize || cap(p.spans) > 16 {
		t.Fatalf("room for %d bytes and %d arguments was made for what is only announced", n, cap(p.spans))
	}
}

func TestParserGivesLargeBufferBack(t *testing.T) {
	p := newParser()
	p.loggedIn = true
	request := fmt.Appendf(nil, "*1\r\n$%d\r\n%s\r\n", maxBulk, make([]byte, maxBulk))
	for b := request; len(b) > 0; {
		n := copy(p.room(), b)
		p.wrote(n)
		b = b[n:]
		args, size, err := p.next()
		if err != nil || args != nil && (size != len(request) || len(args[0]) != maxBulk) {
			t.Fatal(size, err)
		}
	}
	if p.room(); cap(p.buf) > keepSize {
		t.Fatalf("an idle connection keeps %d bytes", cap(p.buf))
	}
}

// FuzzParser checks that cuts make no difference, and that the results are those of a framed
// command.
func FuzzParser(f *testing.F) {
	f.Add([]byte(stream), uint(7), true)
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\n"), uint(3), false)
	f.Add([]byte("set 'a\\'b' \"\\x41\\n\\\"\"\n*1\r\n$-1\r\n"), uint(1), true)
	f.Fuzz(func(t *testing.T, input []byte, cut uint, trust bool) {
		whole, err := feed(trust, input)
		var chunks [][]byte
		for rest := range slices.Chunk(input, int(cut%64)+1) {
			chunks = append(chunks, rest)
		}
		parts, partsErr := feed(trust, chunks...)
		if !slices.EqualFunc(whole, parts, slices.Equal) || fmt.Sprint(err) != fmt.Sprint(partsErr) {
			t.Fatalf("whole: %q, %v\nin parts: %q, %v", whole, err, parts, partsErr)
		}
		var framed []byte
		for _, command := range whole {
			framed = fmt.Appendf(framed, "*%d\r\n", len(command))
			for _, a := range command {
				framed = fmt.Appendf(framed, "$%d\r\n%s\r\n", len(a), a)
			}
		}
		again, err := feed(true, framed)
		if err != nil || !slices.EqualFunc(whole, again, slices.Equal) {
			t.Fatalf("%q, framed, is %q, %v", whole, again, err)
		}
	})
}

func TestParseInt(t *testing.T) {
	for _, s := range []string{
		"0", "1", "-1", "42", "9223372036854775807", "-9223372036854775808",
		"", "-", "+1", "01", "-0", "00", " 1", "1 ", "1.0", "1e3", "9223372036854775808", "-9223372036854775809",
		"18446744073709551616", "99999999999999999999", "x",
	} {
		want, err := strconv.ParseInt(s, 10, 64)
		ok := err == nil && strconv.FormatInt(want, 10) == s
		if got, gotOK := parseInt([]byte(s)); gotOK != ok || ok && got != want {
			t.Errorf("%q: %d, %v", s, got, gotOK)
		}
	}
	if n, ok := parseInt(strconv.AppendInt(nil, math.MinInt64, 10)); !ok || n != math.MinInt64 {
		t.Error(n, ok)
	}
}

func TestSplitLine(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{``, `[]`},
		{`a  b`, `["a" "b"]`},
		{`"a b" c`, `["a b" "c"]`},
		{`"\x00\n\r\t\b\a\\\"\q\xzz"`, `["\x00\n\r\t\b\a\\\"qxzz"]`},
		{`'a\'b\n'`, `["a'b\\n"]`},
		{`""`, `[""]`},
		{`a"b"`, `["ab"]`},
		{`"a"b`, `no`},
		{`"a`, `no`},
		{`'a`, `no`},
		{`'a'b`, `no`},
	} {
		args, ok := splitLine([]byte(test.line))
		got := "no"
		if ok {
			got = fmt.Sprintf("%q", args)
		}
		if got != test.want {
			t.Errorf("%s: %s, not %s", test.line, got, test.want)
		}
	}
}

// TestGlobAgainstOracle compares the matcher with one that tries everything.
func TestGlobAgainstOracle(t *testing.T) {
	const letters = `ab*?[]^-\`
	for n := range len(letters) * len(letters) * len(letters) * len(letters) * len(letters) {
		var pattern []byte
		for range 5 {
			pattern = append(pattern, letters[n%len(letters)])
			n /= len(letters)
		}
		for _, s := range []string{"", "a", "b", "ab", "ba", "aab", "a-b", "[a]", `a\b`, "abab"} {
			p := string(pattern)
			got := matchGlob(p, s)
			want := s != "" && slowGlob(p, s) // Redis 7: the empty string matches "*" and nothing else
			if got != want {
				t.Fatalf("%q matches %q: %v, not %v", p, s, got, want)
			}
			if prefix, exact := globPrefix(p); got && (!strings.HasPrefix(s, prefix) || exact && s != prefix) {
				t.Fatalf("%q matches %q, whose prefix is not %q (alone: %v)", p, s, prefix, exact)
			}
		}
	}
	if matchGlob(strings.Repeat("*a", 50), strings.Repeat("a", 5000)+"b") { // would take an age
		t.Error("a pattern that ends in a matches what ends in b")
	}
}

func slowGlob(p, s string) bool {
	if p == "" {
		return s == ""
	}
	if p[0] == '*' {
		return slowGlob(p[1:], s) || s != "" && slowGlob(p, s[1:])
	}
	if s == "" {
		return false
	}
	width, ok := matchOne(p, s[0])
	return ok && slowGlob(p[width:], s[1:])
}

func TestPrefixEnd(t *testing.T) {
	for _, test := range [][2]string{{"", ""}, {"a", "b"}, {"a\xff", "b"}, {"\xff\xff", ""}, {"a\x00", "a\x01"}} {
		if got := prefixEnd(test[0]); got != test[1] {
			t.Errorf("%q: %q", test[0], got)
		}
	}
}

// TestCursorsForget keeps memory bounded, and the newest places.
func TestCursorsForget(t *testing.T) {
	var c cursors
	key := strings.Repeat("k", 60<<10)
	first := c.add(key)
	last := first
	for range 2 * maxCursorBytes / len(key) {
		last = c.add(key)
	}
	if _, ok := c.find(first); ok {
		t.Error("the first place is still there")
	}
	if got, ok := c.find(last); !ok || got != key {
		t.Error("the last place is gone")
	}
	if c.bytes > maxCursorBytes || len(c.places) != len(c.queue) {
		t.Errorf("%d bytes, %d places, %d in the queue", c.bytes, len(c.places), len(c.queue))
	}
}

func TestKeySlotOfRedis(t *testing.T) {
	for key, want := range map[string]int{"": 0, "foo": 12182, "{foo}x": 12182, "x{foo}y{bar}": 12182, "{}foo": keySlot("{}foo"), "123456789": 12739} {
		if got := keySlot(key); got != want {
			t.Errorf("%q: %d, not %d", key, got, want)
		}
		if got := keySlot([]byte(key)); got != want {
			t.Errorf("%q as bytes: %d, not %d", key, got, want)
		}
	}
}

// TestErrorsAreOneLine: whatever an error says, the protocol stays whole.
func TestErrorsAreOneLine(t *testing.T) {
	var e encoder
	e.fail("ERR a\r\nb\nc")
	if !bytes.Equal(e.b, []byte("-ERR a  b c\r\n")) {
		t.Errorf("%q", e.b)
	}
}
