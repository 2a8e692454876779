package fastzstd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/weirdb/weir/internal/testkit"
)

// inputs are streams of all kinds, those that a format's limits concern among them.
func inputs() map[string][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(rng.Uint32())
		}
		return out
	}
	rows := func(n int) []byte {
		var out bytes.Buffer
		for i := 0; out.Len() < n; i++ {
			fmt.Fprintf(&out, "%d\t%d\t2026-11-%02d 10:%02d:00+00\t%s\t\\N\n", i, rng.IntN(5000), 1+i/9000%28, i/150%60, []string{"paid", "open", "sent to a customer"}[rng.IntN(3)])
		}
		return out.Bytes()[:n]
	}
	runs := func(n int) []byte { // matches of all lengths at all distances
		out := random(300)
		for len(out) < n {
			from := len(out) - 1 - rng.IntN(min(len(out), 1<<(4+rng.IntN(17))))
			for range 1 << rng.IntN(15) {
				out = append(out, out[from])
				from++
			}
			out = append(out, random(rng.IntN(1<<rng.IntN(8)))...)
		}
		return out[:n]
	}
	hex := fmt.Appendf(nil, "%x", random(300_000))
	far := random(window) // what was exactly a window ago, and a byte more
	in := map[string][]byte{
		"empty": nil, "one byte": {7}, "short": []byte("weir weir weir weir weir"), "zeros": make([]byte, 3*maxBlock+5),
		"random": random(2*maxBlock + 77), "hexadecimal": hex, "rows": rows(5 << 20), "runs": runs(6 << 20),
		"a window apart": slicesOf(far, far, random(1), far), "two kinds": slicesOf(rows(maxBlock+9), random(3*maxBlock), rows(maxBlock), random(maxBlock), rows(100)),
		"few sequences": slicesOf(random(5000), random(90)[:40], make([]byte, 90)),
		"text":          []byte(strings.Repeat("the quick brown fox ", 40) + "jumps over the lazy dog" + strings.Repeat("quick the fox brown ", 4000)),
	}
	for n := 1; n < 40; n++ {
		in[fmt.Sprint("rows of ", n)] = rows(n)
		in[fmt.Sprint("block and ", n)] = rows(maxBlock - 20 + n)
	}
	return in
}

func slicesOf(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// compress writes in pieces of several sizes.
func compress(t testing.TB, e *Encoder, in []byte, piece int) []byte {
	t.Helper()
	var out bytes.Buffer
	e.Reset(&out)
	for rest := in; len(rest) > 0; {
		n := min(len(rest), piece)
		if m, err := e.Write(rest[:n]); err != nil || m != n {
			t.Fatalf("write: %d of %d, %v", m, n, err)
		}
		rest = rest[n:]
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := e.Sum64(), xxhash.Sum64(in); got != want {
		t.Fatalf("sum %x, want %x", got, want)
	}
	return out.Bytes()
}

// checkDecoded reads a frame by another decoder, whole and as a stream.
func checkDecoded(t testing.TB, frame, want []byte) {
	t.Helper()
	d, err := zstd.NewReader(bytes.NewReader(frame), zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := io.ReadAll(d)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back of %d, and other ones", len(got), len(want))
	}
}

// TestRoundTrip uses one encoder for all, as a backup does: nothing of one stream may
// be seen in the next.
func TestRoundTrip(t *testing.T) {
	testkit.Alone(t)
	e := New(io.Discard)
	for name, in := range inputs() {
		for _, piece := range []int{1 << 30, 256 << 10, 999} {
			if piece == 999 && len(in) > 1<<20 {
				in = in[:1<<20]
			}
			frame := compress(t, e, in, piece)
			t.Run(fmt.Sprint(name, "/", piece), func(t *testing.T) { checkDecoded(t, frame, in) })
		}
	}
}

// TestTool has the zstd program read what we write.
func TestTool(t *testing.T) {
	testkit.Alone(t)
	tool, err := exec.LookPath("zstd")
	if err != nil {
		t.Skip("the zstd program is not installed: apt-get install zstd")
	}
	var frames, all []byte // frames one after the other are a stream, too
	e, inputs := New(io.Discard), inputs()
	for _, name := range []string{"runs", "rows", "random", "empty", "zeros", "a window apart", "two kinds", "text", "hexadecimal"} {
		in := inputs[name]
		all = append(all, in...)
		frames = append(frames, compress(t, e, in, 64<<10)...)
	}
	cmd := exec.Command(tool, "-dc")
	cmd.Stdin = bytes.NewReader(frames)
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, all) {
		t.Fatalf("%d bytes came back of %d, and other ones", len(got), len(all))
	}
}

// TestSmall says that what can be made smaller is, about as the general encoder does.
func TestSmall(t *testing.T) {
	testkit.Alone(t)
	in := inputs()
	e := New(io.Discard)
	for name, most := range map[string]float64{"zeros": 0.001, "rows": 1.05, "runs": 1.1, "hexadecimal": 1.02, "random": 1.001, "text": 1.5} {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		got, theirs := len(compress(t, e, in[name], 1<<20)), len(w.EncodeAll(in[name], nil))
		limit := most * float64(theirs)
		if name == "zeros" {
			limit = most * float64(len(in[name]))
		}
		if float64(got) > limit {
			t.Errorf("%s: %d bytes became %d, and %d by another encoder", name, len(in[name]), got, theirs)
		}
	}
}

type failing struct{ after int }

var errFull = errors.New("no room")

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// TestFailure says that an error of what is below ends the stream, and only this one.
func TestFailure(t *testing.T) {
	in := inputs()["random"]
	e := New(&failing{after: maxBlock + 100})
	if _, err := e.Write(in); !errors.Is(err, errFull) {
		t.Errorf("write: %v", err)
	}
	if _, err := e.Write(in[:1]); !errors.Is(err, errFull) {
		t.Errorf("write after an error: %v", err)
	}
	if err := e.Close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v", err)
	}
	checkDecoded(t, compress(t, e, in, 1000), in)
	if _, err := e.Write(in); err == nil {
		t.Error("a stream that has ended takes bytes")
	}
}

// TestRepeatable says that what an encoder did before makes no difference.
func TestRepeatable(t *testing.T) {
	testkit.Alone(t)
	in := inputs()
	e := New(io.Discard)
	fresh := bytes.Clone(compress(t, e, in["rows"], 1<<20))
	compress(t, e, in["runs"], 1<<20)
	if again := compress(t, e, in["rows"], 1<<20); !bytes.Equal(fresh, again) {
		t.Errorf("the same rows became %d bytes, and %d after another stream", len(fresh), len(again))
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, in := range inputs() {
		if len(in) < 8<<10 {
			f.Add(in, uint8(1))
		}
	}
	e := New(io.Discard)
	f.Fuzz(func(t *testing.T, in []byte, times uint8) {
		whole := bytes.Repeat(in, 1+int(times)*7)
		if len(whole) > 2<<20 {
			whole = whole[:2<<20]
		}
		checkDecoded(t, compress(t, e, whole, 100_000), whole)
	})
}
