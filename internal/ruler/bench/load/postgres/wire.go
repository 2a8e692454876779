package pgload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// statementName is the name of the prepared statement on every connection.
const statementName = "weir_load"

// maxMessage limits a server's message; answers to our statements are much smaller.
const maxMessage = 1 << 20

// appendPrepared appends Bind, Describe portal, Execute and Sync for one operation, with
// arguments as text: the same bytes that libpq's PQsendQueryPrepared sends, and so pgbench.
func appendPrepared(b []byte, op *operation) []byte {
	var at int
	b, at = begin(b, 'B')
	b = append(b, 0) // unnamed portal
	b = append(b, statementName...)
	b = append(b, 0, 0, 0) // end of name; no argument formats: all text
	b = binary.BigEndian.AppendUint16(b, uint16(op.nargs))
	for _, a := range op.args[:op.nargs] {
		length := len(b)
		b = append(b, 0, 0, 0, 0)
		b = strconv.AppendInt(b, a, 10)
		binary.BigEndian.PutUint32(b[length:], uint32(len(b)-length-4))
	}
	b = append(b, 0, 1, 0, 0) // one result format for all columns: text
	end(b, at)
	b = append(b, 'D', 0, 0, 0, 6, 'P', 0)
	b = append(b, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0) // unnamed portal, all rows
	return append(b, 'S', 0, 0, 0, 4)
}

// appendSimple appends a Query message with the arguments as literals.
func appendSimple(b []byte, t load.Template, op *operation) []byte {
	b, at := begin(b, 'Q')
	b = append(t.Append(b, op.args[:op.nargs]...), 0)
	end(b, at)
	return b
}

func begin(b []byte, kind byte) (grown []byte, at int) {
	return append(b, kind, 0, 0, 0, 0), len(b) + 1
}

func end(b []byte, at int) { binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at)) }

// reply collects the messages that answer one operation.
type reply struct {
	answer answer
	detail string // text of the error, for the report of a wrong answer
}

// consume parses whole messages of b and returns their length. It stops after ReadyForQuery,
// with done true: the operation is answered.
func (r *reply) consume(b []byte) (n int, done bool, err error) {
	for len(b)-n >= 5 {
		size := int(binary.BigEndian.Uint32(b[n+1:]))
		if size < 4 || size > maxMessage {
			return n, false, fmt.Errorf("message %q of %d bytes", b[n], size)
		}
		if len(b)-n < 1+size {
			return n, false, nil
		}
		kind, body := b[n], b[n+5:n+1+size]
		n += 1 + size
		switch kind {
		case 'Z':
			return n, true, nil
		case 'D':
			if err := r.row(body); err != nil {
				return n, false, err
			}
		case 'C':
			r.answer.tag = [24]byte{}
			copy(r.answer.tag[:], bytes.TrimRight(body, "\x00"))
		case 'E':
			r.failure(body)
		case '1', '2', 'n', 'N', 'S', 'T', 'A':
			// parse and bind complete, no data, notice, parameter, row description,
			// notification: nothing to check
		default:
			return n, false, fmt.Errorf("unexpected message %q", kind)
		}
	}
	return n, false, nil
}

func (r *reply) row(body []byte) error {
	r.answer.rows++
	if r.answer.rows > 1 {
		return nil
	}
	if len(body) < 6 {
		return errors.New("row without a column")
	}
	size := int32(binary.BigEndian.Uint32(body[2:]))
	if size < 0 || int(size) > len(body)-6 {
		return errors.New("column runs past its row")
	}
	v, err := strconv.ParseInt(string(body[6:6+size]), 10, 64)
	if err != nil {
		return fmt.Errorf("column is not a number: %w", err)
	}
	r.answer.value = v
	return nil
}

// failure parses an ErrorResponse: fields of one letter and a text, each terminated by a zero
// byte.
func (r *reply) failure(body []byte) {
	for len(body) > 1 {
		text, rest, ok := bytes.Cut(body[1:], []byte{0})
		switch body[0] {
		case 'C':
			r.answer.code = [5]byte{}
			copy(r.answer.code[:], text)
		case 'M':
			r.detail = string(text)
		}
		if !ok {
			break
		}
		body = rest
	}
	if r.answer.code == [5]byte{} {
		r.answer.code = [5]byte{'?', '?', '?', '?', '?'}
	}
}
