package resp

import (
	"sync/atomic"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Reply is the place of an answer in the order of a connection. Who has to
// complete it calls Done once; the connection owns it before and after that.
type Reply struct {
	done   atomic.Bool
	result [1]wire.Result // an array, so that a shape sees a slice in any case
	err    error

	answer answer
	parts  []answer // of a transaction: the answers to its commands
	proto  uint8    // that the client spoke when it sent the command
	read   bool     // the client may keep what it reads here: tracked
	conn   *conn    // that it belongs to; nil in tests
	size   int      // bytes of the answer, once they are counted; conn.mu guards it
	cost   int      // bytes of the command, and of the answer as far as they are known before
}

// Done completes the reply: err, or else result, whose memory must not be
// changed any more. The client gets it after the next Flush, at the latest.
func (r *Reply) Done(result wire.Result, err error) {
	r.result[0], r.err = result, err
	if r.done.Swap(true) {
		panic("resp: a reply was completed twice")
	}
}

// Outcome is what Done was called with; done is false until then.
func (r *Reply) Outcome() (result wire.Result, done bool, err error) {
	if !r.done.Load() {
		return wire.Result{}, false, nil
	}
	return r.result[0], true, r.err
}

// keepText is how much room for a local answer a reply keeps when it is used again.
const keepText = 1 << 10

// reset makes r fit for another command.
func (r *Reply) reset() {
	text := r.answer.text[:0]
	if cap(text) > keepText {
		text = nil
	}
	r.done.Store(false)
	r.result[0], r.err, r.parts, r.size = wire.Result{}, nil, nil, 0
	r.answer = answer{text: text}
}

// answer is how one command is answered: by text, which is known when the
// command is parsed, or by a shape, into which the results of n commands of the
// store are poured.
type answer struct {
	text  []byte
	shape shape
}

// shape turns results into RESP.
type shape struct {
	render func(e *encoder, s *shape, r []wire.Result)
	n      int // how many results it takes; more than one come from a transaction
	a, b   int64
	extra  any
}

// render appends the whole reply.
func (r *Reply) render(e *encoder) {
	e.proto = r.proto
	switch {
	case r.err != nil:
		e.fail(errorText(r.err))
	case r.parts != nil:
		r.renderParts(e)
	case r.answer.shape.render == nil:
		e.raw(r.answer.text)
	case r.answer.shape.n > 1:
		if len(r.result[0].Results) != r.answer.shape.n {
			e.fail(textOf(&r.result[0]))
			return
		}
		r.answer.shape.pour(e, r.result[0].Results)
	default:
		r.answer.shape.pour(e, r.result[:])
	}
}

// renderParts answers EXEC.
func (r *Reply) renderParts(e *encoder) {
	result := &r.result[0]
	if result.Code == wire.NotMet {
		e.nullArray()
		return
	}
	want := 0
	for i := range r.parts {
		want += r.parts[i].shape.n
	}
	if result.Code != wire.OK || len(result.Results) != want {
		e.fail(textOf(result))
		return
	}
	e.array(len(r.parts))
	results := result.Results
	for i := range r.parts {
		p := &r.parts[i]
		if p.shape.render == nil {
			e.b = append(e.b, p.text...)
			continue
		}
		p.shape.pour(e, results[:p.shape.n])
		results = results[p.shape.n:]
	}
}

// pour renders the results, or the error that one of them is. Codes that are
// answers rather than errors are the shape's business.
func (s *shape) pour(e *encoder, results []wire.Result) {
	for i := range results {
		if c := results[i].Code; c == wire.WrongType || c == wire.TooLarge || c == wire.Malformed {
			e.fail(textOf(&results[i]))
			return
		}
	}
	s.render(e, s, results)
}
