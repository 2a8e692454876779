package outboxload

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// A Message is the n-th of a key, counted from 0.
type Message struct {
	Key int
	N   int64
	// Payload starts with key and number (see ParsePayload). It is shared with other messages
	// and must not be changed.
	Payload []byte
}

// KeyName is the key as stored in the table.
func KeyName(key int) string { return "k" + strconv.Itoa(key) }

// The payload starts with the key in keyDigits and the number in numberDigits hexadecimal
// digits.
const (
	keyDigits    = 8
	numberDigits = 16
	// MinPayload is the smallest payload in bytes.
	MinPayload = keyDigits + numberDigits
)

// alphabet are the characters of payloads: 64 that JSON and SQL do not escape, so that a
// payload has the same length in every outbox.
const alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"

// Filler makes random characters, the same in each run: compression by a server gains little,
// as with real payloads that are already compressed.
func Filler(size int) []byte {
	r := rand.New(rand.NewPCG(5, 512))
	b := make([]byte, size)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return b
}

// payloads makes payloads of one size.
type payloads struct{ fill []byte }

func newPayloads(size int) (payloads, error) {
	if size < MinPayload {
		return payloads{}, fmt.Errorf("payloads of %d bytes: want at least %d, which identify the message", size, MinPayload)
	}
	return payloads{Filler(size)}, nil
}

// message makes a message with its own payload.
func (p payloads) message(key int, n int64) Message {
	b := append([]byte(nil), p.fill...)
	putHex(b[:keyDigits], uint64(key))
	putHex(b[keyDigits:MinPayload], uint64(n))
	return Message{key, n, b}
}

func putHex(b []byte, v uint64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = alphabet[v&15]
		v >>= 4
	}
}

// ParsePayload parses key and number.
func ParsePayload(b []byte) (key int, n int64, err error) {
	if len(b) < MinPayload {
		return 0, 0, fmt.Errorf("a payload of %d bytes is not one of ours", len(b))
	}
	k, err := parseHex(b[:keyDigits])
	if err != nil {
		return 0, 0, err
	}
	v, err := parseHex(b[keyDigits:MinPayload])
	if err != nil {
		return 0, 0, err
	}
	if k > 1<<31-1 || v > 1<<62 {
		return 0, 0, fmt.Errorf("payload %q names an impossible message", b[:MinPayload])
	}
	return int(k), int64(v), nil
}

func parseHex(b []byte) (v uint64, err error) {
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, fmt.Errorf("%q in a payload is not a hexadecimal digit", c)
		}
	}
	return v, nil
}
