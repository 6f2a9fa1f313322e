#!/bin/sh
echo server1:1
echo server2:1
