package mywire

import (
	"bytes"
	"errors"
	"testing"
)

func TestPacketsAreSplitAndJoined(t *testing.T) {
	for _, c := range []struct{ payload, packets int }{
		{0, 1}, {1, 1}, {300, 1}, {MaxPayload - 1, 1}, {MaxPayload, 2}, {MaxPayload + 1, 2},
	} {
		payload := bytes.Repeat([]byte{'x'}, c.payload)
		packet := AppendPacket([]byte("before"), 254, payload)[6:]
		if want := c.payload + c.packets*HeaderLen; len(packet) != want {
			t.Fatalf("%d bytes of payload take %d, want %d", c.payload, len(packet), want)
		}
		if n, ok := Message(append(packet, 1, 2, 3)); !ok || n != len(packet) {
			t.Errorf("%d bytes: Message says %d, %t", c.payload, n, ok)
		}
		if _, ok := Message(packet[:len(packet)-c.payload%MaxPayload-1]); ok {
			t.Errorf("%d bytes: Message is content with less than the last header", c.payload)
		}
		got, next, err := Payload(packet)
		if err != nil || !bytes.Equal(got, payload) || next != 254+byte(c.packets) || next != NextSeq(packet) {
			t.Errorf("%d bytes: %d, next %d and %d, %v", c.payload, len(got), next, NextSeq(packet), err)
		}
		if _, _, err := Payload(packet[:len(packet)-1]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes cut short: %v", c.payload, err)
		}
		// The builders fill the header in afterwards, and have to come to the same.
		if c.payload > 0 {
			built, at := begin([]byte("before"), 254)
			if built = end(append(built, payload...), at); !bytes.Equal(built[6:], packet) {
				t.Errorf("%d bytes: end makes another packet", c.payload)
			}
			command := AppendCommand(nil, 'x', payload[1:])
			if got, _, err := Payload(command); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("%d bytes: AppendCommand makes another payload", c.payload)
			}
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(AppendPacket(nil, 3, []byte("hello")))
	f.Add(AppendHeader(nil, MaxPayload, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := Message(b)
		payload, next, err := Payload(b)
		if (err == nil) != (ok && n <= len(b)) {
			t.Fatalf("Message: %d, %t; Payload: %v", n, ok, err)
		}
		if err == nil && !bytes.Equal(AppendPacket(nil, b[3], payload), b[:n]) {
			t.Fatal("not the same packet again")
		}
		if err == nil && next != NextSeq(b[:n]) {
			t.Fatal("not the same sequence")
		}
	})
}
