package archive

import (
	"errors"
	"io"
)

func newDecoder(io.Reader, Codec) (io.ReadCloser, error) { return nil, errors.ErrUnsupported }
