package mywire

// This file recognizes the compressed protocol in order to refuse it. weir never offers it, but
// some clients use it nevertheless if configured to, such as MySQL's Connector/Python.

// compressedLen is the length of the header of a compressed packet: length, sequence number,
// and length before compression or 0 for an uncompressed one.
const compressedLen = 7

// TellsCompressed is the number of bytes that IsCompressed needs. A compressed command is
// longer.
const TellsCompressed = compressedLen + 2

// IsCompressed reports whether p, what a client has sent after its login, begins with a
// compressed packet. No command looks like one: the first byte would be that of COM_SLEEP,
// which no client sends, or a text would begin with zlib's magic number.
func IsCompressed(p []byte) bool {
	if len(p) < TellsCompressed {
		return false
	}
	if before := int(p[4]) | int(p[5])<<8 | int(p[6])<<16; before == 0 {
		return true
	}
	const zlib = 0x78
	return p[7] == zlib && (zlib<<8|int(p[8]))%31 == 0
}

// AppendCompressedError appends an ERR in the compressed protocol, as the answer to a client's
// command.
func AppendCompressedError(dst []byte, e *Error) []byte {
	packet := AppendError(nil, 1, e)
	return append(append(AppendHeader(dst, len(packet), 1), 0, 0, 0), packet...)
}
