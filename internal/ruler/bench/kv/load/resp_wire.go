package kvload

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// reply is a reply of a Redis server, in RESP2 or RESP3.
type reply struct {
	kind  byte   // '+', '-', ':', '$', '*' and those of RESP3
	text  []byte // of a line or a bulk string; refers to the buffer it was read from
	null  bool
	items []reply
}

// Limits of what is read: our own values are small.
const (
	maxReplyBytes = 64 << 20
	maxReplyItems = 1 << 20
	maxReplyDepth = 8
)

var (
	errIncomplete = errors.New("reply is not complete")
	errProtocol   = errors.New("not the Redis protocol")
)

// parseReply parses one reply at the start of b and returns its length. The error is
// errIncomplete if more bytes are needed.
func parseReply(b []byte) (reply, int, error) { return parseReplyAt(b, maxReplyDepth) }

func parseReplyAt(b []byte, depth int) (reply, int, error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) > maxReplyBytes {
			return reply{}, 0, fmt.Errorf("%w: a line without an end", errProtocol)
		}
		return reply{}, 0, errIncomplete
	}
	if end < 2 || b[end-1] != '\r' {
		return reply{}, 0, fmt.Errorf("%w: line %q", errProtocol, b[:min(end, 40)])
	}
	r := reply{kind: b[0], text: b[1 : end-1]}
	used := end + 1
	switch r.kind {
	case '+', '-', ':', ',', '#', '(':
		return r, used, nil
	case '_':
		r.null = true
		return r, used, nil
	case '$', '=', '!':
		n, err := length(r.text, maxReplyBytes)
		if err != nil {
			return reply{}, 0, err
		}
		if n < 0 {
			r.null, r.text = true, nil
			return r, used, nil
		}
		if len(b) < used+n+2 {
			return reply{}, 0, errIncomplete
		}
		if b[used+n] != '\r' || b[used+n+1] != '\n' {
			return reply{}, 0, fmt.Errorf("%w: a string of %d bytes has no end", errProtocol, n)
		}
		r.text = b[used : used+n]
		return r, used + n + 2, nil
	case '*', '~', '>', '%', '|':
		return parseItems(b, r, used, depth)
	}
	return reply{}, 0, fmt.Errorf("%w: a reply that begins with %q", errProtocol, r.kind)
}

func parseItems(b []byte, r reply, used, depth int) (reply, int, error) {
	n, err := length(r.text, maxReplyItems)
	if err != nil {
		return reply{}, 0, err
	}
	if depth == 0 {
		return reply{}, 0, fmt.Errorf("%w: too deep", errProtocol)
	}
	r.null, r.text = n < 0, nil
	if r.kind == '%' || r.kind == '|' {
		n *= 2
	}
	for range max(n, 0) {
		item, m, err := parseReplyAt(b[used:], depth-1)
		if err != nil {
			return reply{}, 0, err
		}
		r.items = append(r.items, item)
		used += m
	}
	return r, used, nil
}

func length(text []byte, most int) (int, error) {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < -1 || n > most {
		return 0, fmt.Errorf("%w: length %q", errProtocol, text[:min(len(text), 40)])
	}
	return n, nil
}

// appendCommand appends a request: an array of strings.
func appendCommand(b []byte, args ...string) []byte {
	b = appendHead(b, len(args))
	for _, a := range args {
		b = appendBulk(b, a)
	}
	return b
}

func appendHead(b []byte, n int) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

func appendBulk[T string | []byte](b []byte, s T) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, '\r', '\n')
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// ReplyError is an error reply of a Redis server.
type ReplyError string

func (e ReplyError) Error() string { return string(e) }

// Class is the first word, such as "CLUSTERDOWN".
func (e ReplyError) Class() string {
	word, _, _ := bytes.Cut([]byte(e), []byte(" "))
	return string(word)
}
