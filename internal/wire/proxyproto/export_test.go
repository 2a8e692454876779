package proxyproto

var ClientAddr = clientAddr
