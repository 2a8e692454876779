package pgwire

import "encoding/binary"

// BindMsg is a view of a Bind message. Its slices alias the body. ParseBind parses only the two
// names, which is enough to rename a statement; Params and Decode parse the rest.
type BindMsg struct {
	Portal []byte // empty for the unnamed portal
	Stmt   []byte // empty for the unnamed statement
	Rest   []byte // from the count of parameter formats on, unchecked
}

// BindArgs holds the arguments of a Bind message. Decode reuses its slices, so
// one BindArgs per goroutine reads any number of messages without allocating.
type BindArgs struct {
	// Formats is empty (all text), holds one format for all parameters, or
	// one for each: 0 is text, 1 is binary.
	Formats []int16
	// Values holds the parameters in order. nil is NULL. They alias the body.
	Values [][]byte
	// ResultFormats is raw: an int16 count and an int16 each. It aliases the
	// body.
	ResultFormats []byte
}

// Format returns the format of the i-th parameter: 0 text, 1 binary.
func (a *BindArgs) Format(i int) int16 {
	switch len(a.Formats) {
	case 0:
		return 0
	case 1:
		return a.Formats[0]
	}
	return a.Formats[i]
}

// Decode reads formats, values and result formats into args, replacing what it
// held. It returns ErrMalformed when counts and bytes disagree, or when the
// message declares several formats but another number of parameters.
func (m BindMsg) Decode(args *BindArgs) error {
	args.Formats, args.Values, args.ResultFormats = args.Formats[:0], args.Values[:0], nil
	formats, rest, ok := int16s(m.Rest)
	if !ok {
		return ErrMalformed
	}
	for ; len(formats) > 0; formats = formats[2:] {
		args.Formats = append(args.Formats, int16(binary.BigEndian.Uint16(formats)))
	}
	args.Values, rest, ok = values(rest, args.Values)
	if !ok || (len(args.Formats) > 1 && len(args.Formats) != len(args.Values)) {
		return ErrMalformed
	}
	args.ResultFormats = rest
	if _, rest, ok = int16s(rest); !ok || len(rest) != 0 {
		return ErrMalformed
	}
	return nil
}

// Params calls yield for each parameter in order, with its format and its
// value (nil is NULL, aliasing the body), until yield returns false. It checks
// the message only as far as it reads.
func (m BindMsg) Params(yield func(i int, format int16, value []byte) bool) error {
	formats, rest, ok := int16s(m.Rest)
	if !ok || len(rest) < 2 {
		return ErrMalformed
	}
	n := int(binary.BigEndian.Uint16(rest))
	if len(formats) > 2 && len(formats) != 2*n {
		return ErrMalformed
	}
	rest = rest[2:]
	for i := range n {
		var v []byte
		if v, rest, ok = value(rest); !ok {
			return ErrMalformed
		}
		var format int16
		switch len(formats) {
		case 0:
		case 2:
			format = int16(binary.BigEndian.Uint16(formats))
		default:
			format = int16(binary.BigEndian.Uint16(formats[2*i:]))
		}
		if !yield(i, format, v) {
			return nil
		}
	}
	return nil
}

// int16s reads an int16 count and returns the raw bytes of that many int16.
func int16s(b []byte) (raw, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := 2 * int(binary.BigEndian.Uint16(b))
	b = b[2:]
	if n > len(b) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}
