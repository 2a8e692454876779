package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// readAll takes all frames out of a stream and decodes the messages.
func readAll(src io.Reader, most int) (ms []wire.Message, controls []byte, err error) {
	in, none := &inbox{src: src, max: most, most: replicaBuffer}, &flow{}
	for {
		payload, ok, err := in.next()
		if err != nil {
			return ms, controls, err
		}
		if !ok {
			if err := in.fill(); err != nil {
				return ms, controls, err
			}
			continue
		}
		if payload[0] != frameMessages {
			controls = append(controls, payload[0])
			continue
		}
		more, err := messages([][]byte{payload[1:]}, nil, none)
		if err != nil {
			return ms, controls, err
		}
		ms = append(ms, more...)
	}
}

func TestFramesRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var f frames
	var want []wire.Message
	var closed, frames int
	note := func(n int) {
		if n > 0 {
			closed += n
			frames++
		}
	}
	for i := range 4000 {
		m := numbered(i+1, 1)[0]
		if random.IntN(800) == 0 {
			m.Data = make([]byte, 1+random.IntN(1<<19))
		}
		if len(m.Data) == 0 {
			m.Data = nil
		}
		want = append(want, m)
		note(f.add(&m, m.Size()))
		if random.IntN(200) == 0 {
			note(f.close())
			f.control(framePing, []byte("12345678"))
		}
	}
	note(f.close())
	if f.close() != 0 || closed != len(want) {
		t.Errorf("frames of %d messages closed, want %d", closed, len(want))
	}
	checksum(f.buf)
	for name, src := range map[string]io.Reader{
		"at once":         bytes.NewReader(f.buf),
		"in halves":       iotest.HalfReader(bytes.NewReader(f.buf)),
		"with its end":    iotest.DataErrReader(bytes.NewReader(f.buf)),
		"in odd portions": &portions{b: f.buf, random: random},
	} {
		got, controls, err := readAll(src, maxFrame)
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d messages differ from the %d sent", name, len(got), len(want))
		}
		if len(controls) == 0 || bytes.Trim(controls, string([]byte{framePing})) != nil && len(bytes.Trim(controls, string([]byte{framePing}))) > 0 {
			t.Errorf("%s: other frames %v", name, controls)
		}
	}
}

// portions reads 1 to 5000 bytes a call.
type portions struct {
	b      []byte
	random *rand.Rand
}

func (p *portions) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+p.random.IntN(5000))], p.b)
	p.b = p.b[n:]
	return n, nil
}

func TestFramesAreClosedWhenLargeOrFull(t *testing.T) {
	var f frames
	m := wire.Message{Kind: wire.Weak, Data: make([]byte, frameTarget/2)}
	if n := f.add(&m, m.Size()); n != 0 {
		t.Errorf("closed with %d messages", n)
	}
	if n := f.add(&m, m.Size()); n != 2 {
		t.Errorf("closed with %d messages, want 2", n)
	}
	m.Data = nil
	for i := range maxPerFrame {
		if n := f.add(&m, m.Size()); (n != 0) != (i == maxPerFrame-1) {
			t.Fatalf("closed with %d messages after %d", n, i+1)
		}
	}
	checksum(f.buf)
	if ms, _, err := readAll(bytes.NewReader(f.buf), maxFrame); len(ms) != 2+maxPerFrame || !errors.Is(err, io.EOF) {
		t.Errorf("%d messages, %v", len(ms), err)
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	whole := func(body string) []byte { return []byte(framed(frameMessages, body)) }
	for name, b := range map[string][]byte{
		"no message":          whole(""),
		"length 0":            whole("\x00"),
		"length too large":    whole("\x03\x01\x00"),
		"length without end":  whole("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"an unknown kind":     whole("\x02\xff\x00"),
		"half a message":      whole("\x02\x01\x01"),
		"too many messages":   whole(string(bytes.Repeat([]byte("\x02\x01\x00"), maxPerFrame+1))),
		"larger than allowed": binary.LittleEndian.AppendUint64(nil, 5001),
		"empty":               make([]byte, headerBytes),
	} {
		most := maxFrame
		if name == "larger than allowed" {
			most = 5000
		}
		ms, _, err := readAll(bytes.NewReader(b), most)
		if len(ms) != 0 || !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %d messages, %v", name, len(ms), err)
		}
	}
	flipped := whole("\x02\x01\x00")
	for i := range flipped {
		for bit := range 8 {
			b := bytes.Clone(flipped)
			b[i] ^= 1 << bit
			if ms, controls, err := readAll(bytes.NewReader(b), maxFrame); len(ms)+len(controls) > 0 {
				t.Errorf("byte %d, bit %d: %d messages, %v", i, bit, len(ms), err)
			}
		}
	}
}

// TestInboxGrowsWithWhatArrives announces much and sends little.
func TestInboxGrowsWithWhatArrives(t *testing.T) {
	in := &inbox{src: bytes.NewReader(binary.LittleEndian.AppendUint64(make([]byte, 0, 8), maxFrame)), max: maxFrame}
	if _, _, err := in.frame(); !errors.Is(err, io.EOF) {
		t.Errorf("error = %v", err)
	}
	if len(in.buf) > firstBuffer {
		t.Errorf("%d bytes for a frame of which 8 came", len(in.buf))
	}
	// A large frame grows the buffer, small ones afterwards shrink it.
	var f frames
	large, small := wire.Message{Kind: wire.Raft, Data: make([]byte, 5<<20)}, numbered(1, 1)[0]
	f.add(&large, large.Size())
	for range 3 {
		f.add(&small, small.Size())
		f.close()
	}
	checksum(f.buf)
	in = &inbox{src: &portions{f.buf, rand.New(rand.NewPCG(3, 4))}, max: maxFrame, most: clientBuffer}
	for range 4 {
		if _, _, err := in.frame(); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.fill(); !errors.Is(err, io.EOF) || len(in.buf) > clientBuffer {
		t.Errorf("%d bytes of buffer in the end, %v", len(in.buf), err)
	}
}

func FuzzFrames(f *testing.F) {
	var good frames
	for i := range 5 {
		m := numbered(i+1, 1)[0]
		good.add(&m, m.Size())
		good.close()
	}
	good.control(framePing, []byte("12345678"))
	checksum(good.buf)
	f.Add(good.buf, false)
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x00\x02\x01"), true)
	f.Add([]byte(framed(frameMessages, "\x02\x01\x00")), true)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair { // lets the fuzzer past the checksum
			for rest := b; len(rest) > headerBytes; {
				n := headerBytes + int(binary.LittleEndian.Uint32(rest))
				if n > len(rest) || n <= headerBytes {
					break
				}
				checksum(rest[:n])
				rest = rest[n:]
			}
		}
		whole, controls, err := readAll(bytes.NewReader(b), 1<<20)
		if err == nil {
			t.Fatal("no end")
		}
		halves, controls2, err2 := readAll(iotest.OneByteReader(bytes.NewReader(b)), 1<<20)
		if !reflect.DeepEqual(whole, halves) || !bytes.Equal(controls, controls2) || err.Error() != err2.Error() {
			t.Errorf("at once: %d messages, %v; in bytes: %d messages, %v", len(whole), err, len(halves), err2)
		}
	})
}

func FuzzHandshake(f *testing.F) {
	h := hello{Role: roleReplica, Cluster: "c", To: 1, Self: self{ID: 2, Address: "a:1", Term: 3, Index: 4}, Nonce: newNonce([8]byte{})}
	c := challenge{Cluster: "c", Self: h.Self, Secret: true}
	r := refusal{CodeTaken, "why"}
	f.Add(h.append(nil))
	f.Add(c.append(nil))
	f.Add(r.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil {
			if again, err := decodeHello(h.append(nil)); err != nil || again != h {
				t.Errorf("hello %+v becomes %+v, %v", h, again, err)
			}
		}
		if c, err := decodeChallenge(b); err == nil {
			if again, err := decodeChallenge(c.append(nil)); err != nil || again != c {
				t.Errorf("challenge %+v becomes %+v, %v", c, again, err)
			}
		}
		if r, err := decodeRefusal(b); err == nil {
			if again, err := decodeRefusal(r.append(nil)); err != nil || again != r {
				t.Errorf("refusal %+v becomes %+v, %v", r, again, err)
			}
		}
	})
}

// A client's messages go into the slice that the ones before were in, and nothing of
// those stays there.
func TestMessagesIntoASliceOfBefore(t *testing.T) {
	var f frames
	for _, m := range []wire.Message{{Kind: wire.ReadDone, Request: 1, Data: []byte("x")}, {Kind: wire.WeakDone, Session: 2, Seq: 3}} {
		f.add(&m, m.Size())
	}
	f.close()
	body := [][]byte{f.buf[headerBytes+1:]}
	first, err := messages(body, nil, &flow{})
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(first)
	spent := make([]wire.Message, 3)
	for _, into := range [][]wire.Message{spent, spent[:1], first[:0]} {
		clear(into[:cap(into)])
		got, err := messages(body, into, &flow{})
		if err != nil || !reflect.DeepEqual(got, want) || &got[0] != &into[:1][0] {
			t.Errorf("into %d of %d: %+v, %v", len(into), cap(into), got, err)
		}
	}
	if got, err := messages(body, spent[:0:1], &flow{}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("into too few: %+v, %v", got, err)
	}
}
