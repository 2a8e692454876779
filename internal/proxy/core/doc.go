// Package core has what the two sides of the proxy do alike. It speaks no protocol.
package core
